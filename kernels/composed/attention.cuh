// Attention along rows or columns on tensor cores: o = softmax(scale * q k^T) v for each sequence and head.
//
//   qkv [token, (q heads, k heads, v heads), HEAD_DIM], o [token, heads, HEAD_DIM], both as the projections have them
//
// A block owns WARPS x TILES x 16 queries of one head of one sequence, and walks over the keys KEYS at a time, the
// next keys and values being copied while these are used (cp.async, two stages). Rows and columns differ in strides
// alone. The maximum is subtracted as it grows (Milakov and Gimelshein 2018; Dao et al. 2022). Keys that are masked,
// past the end, or in the causal future get -infinity by selection, and their values are zeros in shared memory, so
// that nothing of them spreads.
//
// Shared memory: (queries + 4 KEYS) rows of HEAD_DIM elements and 16 bytes.
// Limit: for short sequences bytes of q, k, v; for long ones 4 L^2 HEAD_DIM flops against L^2 exponentials.
#pragma once

#include "common/index.cuh"
#include "composed/products.cuh"
#include "ptx/copy.cuh"
#include "ptx/math.cuh"

namespace warpweave::kernels::composed {

template <class Products, int WARPS, int TILES, int KEYS, bool CAUSAL>
struct Attention {
  using Element = typename Products::Element;
  static constexpr int HEAD = Products::HEAD_DIM, ROW_BYTES = Products::ROW_BYTES;
  static constexpr int QUERIES = WARPS * TILES * 16;
  static constexpr int CHUNKS = HEAD * sizeof(Element) / 16;  // 16-byte pieces of a row
  static constexpr int THREADS = WARPS * 32;
  static constexpr int STAGE_BYTES = 2 * KEYS * ROW_BYTES;
  static constexpr int WORDS = (KEYS + 31) / 32;  // bits of valid keys

  const AttentionParams& p;
  const Element* q;       // of the sequence's first token and this head
  const u8* mask;         // of the sequence's first cell, or null
  i64 token_stride;       // elements from one token of the sequence to the next
  i64 head_block;         // elements from q to k to v
  i64 first_query;

  __device__ __forceinline__ bool valid(i64 key) const {
    return key < p.length && (!mask || mask[key * p.mask_cells.step]);
  }

  __device__ __forceinline__ void copy_queries(u32 shared) const {
    for (int i = threadIdx.x; i < QUERIES * CHUNKS; i += THREADS) {
      const i64 token = first_query + i / CHUNKS;
      const bool present = token < p.length;
      copy_async<16>(shared + i / CHUNKS * ROW_BYTES + i % CHUNKS * 16,
                     reinterpret_cast<const char*>(q + (present ? token : 0) * token_stride) + i % CHUNKS * 16,
                     present);
    }
  }

  // Keys from `first` on, then their values.
  __device__ __forceinline__ void copy_keys(u32 shared, i64 first) const {
    for (int i = threadIdx.x; i < KEYS * CHUNKS; i += THREADS) {
      const i64 key = first + i / CHUNKS;
      const bool present = valid(key);
      const char* from = reinterpret_cast<const char*>(q + head_block + (present ? key : 0) * token_stride) +
                         i % CHUNKS * 16;
      const u32 to = shared + i / CHUNKS * ROW_BYTES + i % CHUNKS * 16;
      copy_async<16>(to, from, present);
      copy_async<16>(to + KEYS * ROW_BYTES, from + head_block * sizeof(Element), present);
    }
  }

  // Bit j of word w: key first + 32 w + j may be attended to. The same in all lanes.
  __device__ __forceinline__ void valid_bits(u32 (&bits)[WORDS], i64 first) const {
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
      const int j = 32 * w + threadIdx.x % 32;
      bits[w] = __ballot_sync(0xffffffffu, j < KEYS && valid(first + j));
    }
  }

  __device__ __forceinline__ void run(u32 shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int g = lane / 4, c = lane % 4;
    const u32 stages = shared + QUERIES * ROW_BYTES;
    const u32 own_rows = shared + warp * TILES * 16 * ROW_BYTES;
    const float factor = p.scale * 1.4426950408889634f;  // to base 2

    i64 end = p.length;
    if (CAUSAL) end = min(end, first_query + QUERIES);
    const i64 steps = (end + KEYS - 1) / KEYS;

    copy_queries(shared);
    copy_keys(stages, 0);
    copy_commit();

    float o[TILES][HEAD / 8][4] = {};
    float top[TILES][2], total[TILES][2];
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
      top[m][0] = top[m][1] = minus_infinity();
      total[m][0] = total[m][1] = 0.0f;
    }
    typename Products::template Query<TILES> query;

    for (i64 step = 0; step < steps; ++step) {
      const i64 first = step * KEYS;
      const u32 keys = stages + step % 2 * STAGE_BYTES;
      if (step + 1 < steps) {
        copy_keys(stages + (step + 1) % 2 * STAGE_BYTES, first + KEYS);
        copy_commit();
        copy_wait<1>();
      } else {
        copy_wait<0>();
      }
      __syncthreads();
      if (step == 0) Products::load_query(query, own_rows);

      float s[TILES][KEYS / 8][4] = {};
      Products::template scores<TILES, KEYS>(s, query, keys);

      if (mask || first + KEYS > p.length) {
        u32 bits[WORDS];
        valid_bits(bits, first);
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
          const u32 own = bits[n / 4] >> (n % 4 * 8 + 2 * c);
#pragma unroll
          for (int m = 0; m < TILES; ++m) {
#pragma unroll
            for (int r = 0; r < 4; ++r) s[m][n][r] = own >> (r % 2) & 1 ? s[m][n][r] : minus_infinity();
          }
        }
      }
      if (CAUSAL && first + KEYS > first_query) {
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
          const int ahead = static_cast<int>(first_query - first) + (warp * TILES + m) * 16 + g - 2 * c;
#pragma unroll
          for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              if (8 * n + r % 2 > ahead + r / 2 * 8) s[m][n][r] = minus_infinity();
            }
          }
        }
      }

#pragma unroll
      for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // rows g and g + 8
          float most = s[m][0][2 * half];
#pragma unroll
          for (int n = 0; n < KEYS / 8; ++n) most = fmaxf(most, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
          const float new_top = fmaxf(top[m][half], quad_max(most));
          const float base = new_top == minus_infinity() ? 0.0f : new_top * factor;
          const float shrink = exp2_approx(top[m][half] * factor - base);  // 0 the first time
          top[m][half] = new_top;
          float sum = 0.0f;
#pragma unroll
          for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
            for (int r = 2 * half; r < 2 * half + 2; ++r) {
              s[m][n][r] = exp2_approx(s[m][n][r] * factor - base);
              sum += s[m][n][r];
            }
          }
          total[m][half] = total[m][half] * shrink + sum;
#pragma unroll
          for (int n = 0; n < HEAD / 8; ++n) {
            o[m][n][2 * half] *= shrink;
            o[m][n][2 * half + 1] *= shrink;
          }
        }
      }
      Products::template accumulate<TILES, KEYS>(o, s, keys + KEYS * ROW_BYTES);
      __syncthreads();  // before the next copy overwrites these keys
    }

    store(o, total, own_rows, warp, lane);
  }

  // Through the warp's own rows of shared memory, so that lanes write 16 bytes.
  __device__ __forceinline__ void store(const float (&o)[TILES][HEAD / 8][4], const float (&total)[TILES][2],
                                        u32 own_rows, int warp, int lane) const {
    using Result = typename Products::Result;
    const int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = quad_sum(total[m][half]);
        const float gain = sum == 0.0f ? 0.0f : 1.0f / sum;  // no valid key: 0
        const u32 row = own_rows + (m * 16 + half * 8 + g) * ROW_BYTES;
#pragma unroll
        for (int n = 0; n < HEAD / 8; ++n) {
          const float a = o[m][n][2 * half] * gain, b = o[m][n][2 * half + 1] * gain;
          if constexpr (sizeof(Element) == 2) {
            store_shared(row + n * 16 + c * 4, Pair<Element>::pack(a, b));
          } else {
            store_shared(row + n * 32 + c * 8, __float_as_uint(from_float<Result>(a).value));
            store_shared(row + n * 32 + c * 8 + 4, __float_as_uint(from_float<Result>(b).value));
          }
        }
      }
    }
    __syncwarp();
    const i64 width = p.heads * HEAD;  // elements of a token of o
    const i64 from = q - static_cast<const Element*>(p.qkv);  // start * 3 width + head * HEAD
    Element* out = static_cast<Element*>(p.o) + from / (3 * width) * width + from % (3 * width);
    const i64 stride = token_stride / 3;
    const i64 first = first_query + warp * TILES * 16;
    for (int i = lane; i < TILES * 16 * CHUNKS; i += 32) {
      const i64 token = first + i / CHUNKS;
      if (token >= p.length) break;
      u32 v[4];
      load_shared(v, own_rows + i / CHUNKS * ROW_BYTES + i % CHUNKS * 16);
      store_global(reinterpret_cast<char*>(out + token * stride) + i % CHUNKS * 16, v[0], v[1], v[2], v[3]);
    }
  }
};

template <class Products, int WARPS, int TILES, int KEYS, bool CAUSAL>
__global__ void __launch_bounds__(WARPS * 32) attention(const AttentionParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Block = Attention<Products, WARPS, TILES, KEYS, CAUSAL>;
  constexpr int HEAD = Products::HEAD_DIM;
  const i64 tiles = (p.length + Block::QUERIES - 1) / Block::QUERIES;
  const i64 tile = blockIdx.x % tiles, head = blockIdx.x / tiles % p.heads, sequence = blockIdx.x / (tiles * p.heads);
  const i64 width = p.heads * HEAD;
  Block block{p,
              static_cast<const typename Products::Element*>(p.qkv) + sequence_start(p.tokens, sequence) * 3 * width +
                  head * HEAD,
              p.mask ? p.mask + sequence_start(p.mask_cells, sequence) : nullptr,
              p.tokens.step * 3 * width,
              width,
              tile * Block::QUERIES};
  block.run(shared_address(memory));
}

}  // namespace warpweave::kernels::composed
