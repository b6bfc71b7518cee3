// Attention along rows or columns on tensor cores: o = softmax(scale * q k^T) v for each sequence and head.
//
//   qkv [token, (q heads, k heads, v heads), PARTS, HEAD_DIM], o [token, PARTS, heads, HEAD_DIM], both as the projections
//   have them; PARTS is 1 unless numbers are sums of parts (split/parts.cuh), and ROW = PARTS x HEAD_DIM
//
// A block owns WARPS x TILES x 16 queries of one head of one sequence. Keys and values pass through shared memory KEYS
// at a time, three stages deep (cp.async), and through registers STEP at a time. AHEAD: the tensor cores compute the
// next scores while this step's exponentials are taken. Rows and columns differ in strides alone.
// The maximum is subtracted as it grows (Milakov and Gimelshein 2018; Dao et al. 2022), but only when it grows by more
// than 2^SLACK, since sums in float32 have the room. Keys that are masked, past the end, or in the causal future get
// -infinity by selection, and their values are zeros in shared memory, so that nothing of them spreads.
//
// Shared memory: (queries + 2 KEYS x stages) rows of ROW elements and 16 bytes.
// Limit: for short sequences bytes of q, k, v; for long ones 4 L^2 HEAD_DIM flops against L^2 exponentials.
#pragma once

#include "common/index.cuh"
#include "composed/products.cuh"
#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/math.cuh"

namespace warpweave::kernels::composed {

// Blocks of a multiprocessor that the registers should allow, for narrow heads: as many as its shared memory does.
#if __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
constexpr int kResidentBlocks = 2;
#else
constexpr int kResidentBlocks = 3;
#endif

template <class Products, int WARPS, int TILES, int KEYS, bool AHEAD, bool CAUSAL>
struct Attention {
  using Element = typename Products::Element;
  static constexpr int HEAD = Products::HEAD_DIM, ROW = Products::ROW, ROW_BYTES = Products::ROW_BYTES;
  static constexpr int QUERIES = WARPS * TILES * 16;
  static constexpr int CHUNKS = ROW * sizeof(Element) / 16;  // 16-byte pieces of a row
  static constexpr int THREADS = WARPS * 32;
  static constexpr int STAGE_BYTES = 2 * KEYS * ROW_BYTES;
  static constexpr int STEP = KEYS < 32 ? KEYS : 32;
  using Scores = float[TILES][STEP / 8][4];
  using Rows = float[TILES][2];  // one value for each of the rows g and g + 8 of a tile
  using Output = float[TILES][HEAD / 8][4];
  using Query = typename Products::template Query<TILES>;

  const AttentionParams& p;
  const Element* q;       // of the sequence's first token and this head
  const u8* mask;         // of the sequence's first cell, or null
  i64 token_stride;       // elements from one token of the sequence to the next
  i64 head_block;         // elements from q to k to v
  int length, first_query;  // a launch has fewer than 2^31 tokens

  __device__ __forceinline__ bool valid(int key) const {
    return key < length && (!mask || mask[key * p.mask_cells.step]);
  }

  __device__ __forceinline__ void copy_queries(u32 shared) const {
    for (int i = threadIdx.x; i < QUERIES * CHUNKS; i += THREADS) {
      const int token = first_query + i / CHUNKS;
      const bool present = token < length;
      copy_async<16>(shared + i / CHUNKS * ROW_BYTES + i % CHUNKS * 16,
                     reinterpret_cast<const char*>(q + (present ? token : 0) * token_stride) + i % CHUNKS * 16,
                     present);
    }
  }

  // Keys from `first` on, then their values. Where all are valid, a thread keeps to one column of 16 bytes.
  __device__ __forceinline__ void copy_keys(u32 shared, int first) const {
    constexpr int ROWS = THREADS / CHUNKS;  // at a time
    if (ROWS > 0 && !mask && first + KEYS <= length) {
      const int row = threadIdx.x / CHUNKS, column = threadIdx.x % CHUNKS * 16;
      const char* from = reinterpret_cast<const char*>(q + head_block + (first + row) * token_stride) + column;
      const i64 stride = token_stride * static_cast<i64>(sizeof(Element)) * ROWS;
      const i64 to_values = head_block * static_cast<i64>(sizeof(Element));
      const u32 to = shared + row * ROW_BYTES + column;
#pragma unroll
      for (int r = 0; r < KEYS; r += ROWS > 0 ? ROWS : KEYS) {
        if ((r + ROWS <= KEYS || r + row < KEYS) && (THREADS % CHUNKS == 0 || row < ROWS)) {
          copy_async<16>(to + r * ROW_BYTES, from);
          copy_async<16>(to + (KEYS + r) * ROW_BYTES, from + to_values);
        }
        from += stride;
      }
      return;
    }
    for (int i = threadIdx.x; i < KEYS * CHUNKS; i += THREADS) {
      const int key = first + i / CHUNKS;
      const bool present = valid(key);
      const char* from = reinterpret_cast<const char*>(q + head_block + (present ? key : 0) * token_stride) +
                         i % CHUNKS * 16;
      const u32 to = shared + i / CHUNKS * ROW_BYTES + i % CHUNKS * 16;
      copy_async<16>(to, from, present);
      copy_async<16>(to + KEYS * ROW_BYTES, from + head_block * sizeof(Element), present);
    }
  }

  // -infinity for keys from `first` on that may not be attended to.
  __device__ __forceinline__ void select(Scores& s, int first) const {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    if (mask || first + STEP > length) {
      const u32 valid_keys = __ballot_sync(0xffffffffu, lane < STEP && valid(first + lane));
      const u32 own = valid_keys >> (2 * c);
#pragma unroll
      for (int n = 0; n < STEP / 8; ++n) {
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
#pragma unroll
          for (int r = 0; r < 4; ++r) s[m][n][r] = own >> (8 * n + r % 2) & 1 ? s[m][n][r] : minus_infinity();
        }
      }
    }
    if (CAUSAL && first + STEP > first_query) {
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
        const int ahead =
            first_query - first + static_cast<int>(threadIdx.x / 32 * TILES + m) * 16 + g - 2 * c;
#pragma unroll
        for (int n = 0; n < STEP / 8; ++n) {
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            if (8 * n + r % 2 > ahead + r / 2 * 8) s[m][n][r] = minus_infinity();
          }
        }
      }
    }
  }

  static __device__ __forceinline__ void assign(Scores& to, const Scores& from) {
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
      for (int n = 0; n < STEP / 8; ++n) {
#pragma unroll
        for (int r = 0; r < 4; ++r) to[m][n][r] = from[m][n][r];
      }
    }
  }

  // Moves the maxima where these scores exceed them by much, and what was summed up under the old ones.
  __device__ __forceinline__ void raise(const Scores& s, Rows& top, Rows& total, Output& o, float factor) const {
    Rows shrink;
    bool moved = false;
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = s[m][0][2 * half];
#pragma unroll
        for (int n = 0; n < STEP / 8; ++n) most = fmaxf(most, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        most = quad_max(most);
        const bool move = most * factor > top[m][half] * factor + Products::SLACK;  // from -infinity on to anything
        shrink[m][half] = move ? exp2_approx((top[m][half] - most) * factor) : 1.0f;
        if (move) top[m][half] = most;
        moved |= move;
      }
    }
    if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          total[m][half] *= shrink[m][half];
#pragma unroll
          for (int n = 0; n < HEAD / 8; ++n) {
            o[m][n][2 * half] *= shrink[m][half];
            o[m][n][2 * half + 1] *= shrink[m][half];
          }
        }
      }
    }
  }

  // Scores to weights, and their sums.
  __device__ __forceinline__ void exponentiate(Scores& s, const Rows& top, Rows& total, float factor) const {
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // NARROW: of the scores as they are; else of the exponents.
        const float base = top[m][half] == minus_infinity() ? 0.0f
                           : Products::NARROW               ? top[m][half]
                                                            : top[m][half] * factor - Products::BOOST;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < STEP / 8; ++n) {
#pragma unroll
          for (int r = 2 * half; r < 2 * half + 2; ++r) {
            s[m][n][r] = exp2_approx(Products::NARROW ? (s[m][n][r] - base) * factor + Products::BOOST
                                                      : s[m][n][r] * factor - base);
            sum += s[m][n][r];
          }
        }
        total[m][half] += sum;
      }
    }
  }

  __device__ __forceinline__ void run(u32 shared) {
    const u32 stages = shared + QUERIES * ROW_BYTES;
    const u32 own_rows = shared + threadIdx.x / 32 * TILES * 16 * ROW_BYTES;
    const float factor = p.scale * 1.4426950408889634f;  // to base 2

    int end = length;
    if (CAUSAL) end = min(end, first_query + QUERIES);
    const int count = (end + KEYS - 1) / KEYS;  // stages

    copy_queries(shared);
    copy_keys(stages, 0);
    copy_commit();
    if (count > 1) copy_keys(stages + STAGE_BYTES, KEYS);
    copy_commit();

    Output o = {};
    Rows top, total;
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
      top[m][0] = top[m][1] = minus_infinity();
      total[m][0] = total[m][1] = 0.0f;
    }
    Query query;
    Scores s = {};
    copy_wait<1>();
    __syncthreads();
    Products::load_query(query, own_rows);
    if constexpr (AHEAD) Products::template scores<TILES, STEP>(s, query, stages);

    u32 here = stages, after = stages + STAGE_BYTES, free = stages + 2 * STAGE_BYTES;
    for (int stage = 0; stage < count; ++stage) {
      const bool more = stage + 1 < count;
      // The stage after this one is here, and nobody uses the one before this any more.
      const auto turn = [&] {
        copy_wait<0>();
        __syncthreads();
        if (stage + 2 < count) copy_keys(free, (stage + 2) * KEYS);
        copy_commit();
      };
      if (!AHEAD && more) turn();
#pragma unroll
      for (int part = 0; part < KEYS / STEP; ++part) {
        const u32 values = here + (KEYS + part * STEP) * ROW_BYTES;
        const bool last = part + 1 == KEYS / STEP;
        if constexpr (AHEAD) {
          if (last && more) turn();
        } else {
          Scores fresh = {};
          Products::template scores<TILES, STEP>(fresh, query, here + part * STEP * ROW_BYTES);
          assign(s, fresh);
        }
        select(s, stage * KEYS + part * STEP);
        raise(s, top, total, o, factor);
        if (AHEAD && (!last || more)) {
          Scores next = {};
          Products::template scores<TILES, STEP>(next, query, last ? after : here + (part + 1) * STEP * ROW_BYTES);
          exponentiate(s, top, total, factor);
          Products::template accumulate<TILES, STEP>(o, s, values);
          assign(s, next);
        } else {
          exponentiate(s, top, total, factor);
          Products::template accumulate<TILES, STEP>(o, s, values);
        }
      }
      const u32 used = here;
      here = after;
      after = free;
      free = used;
    }
    store(o, total, own_rows);
  }

  // Through the warp's own rows of shared memory, so that lanes write 16 bytes.
  __device__ __forceinline__ void store(const Output& o, const Rows& total, u32 own_rows) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int g = lane / 4, c = lane % 4;
    __syncwarp();  // queries are read there until now
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = quad_sum(total[m][half]);
        const float gain = sum == 0.0f ? 0.0f : 1.0f / sum;  // no valid key: 0
        const u32 row = own_rows + (m * 16 + half * 8 + g) * ROW_BYTES;
#pragma unroll
        for (int n = 0; n < HEAD / 8; ++n) {
          Products::store(row, n * 8 + c * 2, o[m][n][2 * half] * gain, o[m][n][2 * half + 1] * gain);
        }
      }
    }
    __syncwarp();
    const i64 width = p.heads * ROW;  // elements of a token of o
    const i64 from = q - static_cast<const Element*>(p.qkv);  // start * 3 width + head * ROW
    Element* out = static_cast<Element*>(p.o) + from / (3 * width) * width + from % (3 * width) / ROW * HEAD;
    const i64 stride = token_stride / 3;
    constexpr int PIECES = CHUNKS * HEAD / ROW;  // of a part
    const int first = first_query + warp * TILES * 16;
    for (int i = lane; i < TILES * 16 * CHUNKS; i += 32) {
      const int token = first + i / CHUNKS;
      if (token >= length) break;
      u32 v[4];
      load_shared(v, own_rows + i / CHUNKS * ROW_BYTES + i % CHUNKS * 16);
      const int piece = i % CHUNKS;
      Element* const part = out + token * stride + piece / PIECES * (p.heads * HEAD);
      store_global(reinterpret_cast<char*>(part) + piece % PIECES * 16, v[0], v[1], v[2], v[3]);
    }
  }
};

template <class Products, int WARPS, int TILES, int KEYS, bool AHEAD, bool CAUSAL>
__global__ void __launch_bounds__(WARPS * 32, AHEAD && Products::HEAD_DIM <= 32 ? kResidentBlocks : 1) attention(const AttentionParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Block = Attention<Products, WARPS, TILES, KEYS, AHEAD, CAUSAL>;
  constexpr int ROW = Products::ROW;
  const i64 tiles = (p.length + Block::QUERIES - 1) / Block::QUERIES;
  const i64 tile = blockIdx.x % tiles, head = blockIdx.x / tiles % p.heads, sequence = blockIdx.x / (tiles * p.heads);
  const i64 width = p.heads * ROW;
  Block block{p,
              static_cast<const typename Products::Element*>(p.qkv) + sequence_start(p.tokens, sequence) * 3 * width +
                  head * ROW,
              p.mask ? p.mask + sequence_start(p.mask_cells, sequence) : nullptr,
              p.tokens.step * 3 * width,
              width,
              static_cast<int>(p.length),
              static_cast<int>(tile) * Block::QUERIES};
  wait_for_previous_grid();
  let_next_grid_start();
  block.run(shared_address(memory));
}

}  // namespace warpweave::kernels::composed
