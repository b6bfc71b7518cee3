// A whole layer on short sequences in one kernel, operands in parts (parts.cuh), nothing written but the result:
//
//   n = norm(x);  q, k, v = n Wqkv^T + b;  o = softmax(q k^T) v for each head;  y = x + o Wout^T + b
//
// Blocks are persistent: both weights stay in shared memory, and a block takes TOKENS tokens of one or several
// sequences at a time, each in a slot of SLOT. Four steps, with a barrier after each:
//   tokens   a few lanes a token: norm, two passes, to `operand`
//   qkv      a warp: 16 tokens x 48 columns at a time, from `operand` to `heads`
//   attend   a warp: 16 queries of one head at a time, all their keys in registers; the result to `operand`
//   finish   a warp: 16 tokens x 16 columns at a time, from `operand` to the grid
// Rows of shared memory are odd multiples of 16 bytes, so that 8 rows read at one column fall into different banks.
// Values of masked keys are zeros in `heads`, so that a NaN in a masked cell reaches nobody.
// Limit: 3 x 2 flops x (4 DIM^2 + 2 SLOT DIM) a token at fp16's rate, and bytes of x and y.
#pragma once

#include "common/index.cuh"
#include "ptx/grid.cuh"
#include "split/params.h"
#include "split/products.cuh"
#include "split/tokens.cuh"

namespace warpweave::kernels::split {

// SLOT: a multiple of 16 up to 64, at least the length. ROTATED: channels of a head that RoPE turns.
template <int PARTS, NormKind NORM, int DIM, int HEADS, int HEAD, int SLOT, int ROTATED, bool CAUSAL, bool MASKED, bool RESIDUAL>
struct ShortSequences {
  static constexpr int WARPS = 8, THREADS = 32 * WARPS;
  static constexpr int SEQUENCES = SLOT < 32 ? 32 / SLOT : 1, TOKENS = SEQUENCES * SLOT, STRIPS = TOKENS / 16;
  static constexpr int INNER = HEADS * HEAD;
  static constexpr int DEPTH = (DIM + 31) / 32 * 32, OUT_DEPTH = (INNER + 31) / 32 * 32;  // of the packed weights
  static constexpr int WIDEST = DEPTH > OUT_DEPTH ? DEPTH : OUT_DEPTH;
  static constexpr int QKV_ROWS = 3 * INNER, OUT_ROWS = (DIM + 15) / 16 * 16;
  // Bytes of a row in shared memory.
  static constexpr int QKV_PITCH = WEIGHT_PARTS * DEPTH * 2 + 16, OUT_PITCH = WEIGHT_PARTS * OUT_DEPTH * 2 + 16;
  static constexpr int OPERAND_PITCH = PARTS * WIDEST * 2 + 16, HEADS_PITCH = PARTS * QKV_ROWS * 2 + 16;
  static constexpr int OPERAND = QKV_ROWS * QKV_PITCH + OUT_ROWS * OUT_PITCH;  // where the tokens' rows begin
  static constexpr int HEADS_AT = OPERAND + TOKENS * OPERAND_PITCH, VALID_AT = HEADS_AT + TOKENS * HEADS_PITCH;
  static constexpr int SHARED_BYTES = VALID_AT + TOKENS;
  using Products = SplitProducts<HEAD, PARTS, HEADS_PITCH>;

  const ShortParams& p;
  u32 shared;
  unsigned char* valid;  // of each token: whether it may be attended to

  // Rows of a packed weight to rows of shared memory, in the order of the columns they stand for (tile.cuh).
  template <int ROWS, int ROW_BYTES, int PITCH>
  __device__ __forceinline__ void load_weight(u32 to, const void* from) const {
    constexpr int PIECES = ROW_BYTES / 16;
    for (int i = threadIdx.x; i < ROWS * PIECES; i += THREADS) {
      const int column = i / PIECES, row = column / 32 * 32 + column % 8 / 2 * 8 + column % 32 / 8 * 2 + column % 2;
      copy_async<16>(to + column * PITCH + i % PIECES * 16, static_cast<const char*>(from) + (row * PIECES + i % PIECES) * 16);
    }
  }

  // Where token `slot` of the block's sequences from `first` on lies; -1 where there is none.
  __device__ __forceinline__ i64 cell(u32 first, int slot) const {
    const u32 sequence = first + slot / SLOT, inner = static_cast<u32>(p.cells.inner);
    const int at = slot % SLOT;
    if (sequence >= p.sequences || at >= p.length) return -1;
    return sequence / inner * p.cells.outer_stride + sequence % inner * p.cells.inner_stride + at * p.cells.step;
  }

  __device__ __forceinline__ void tokens(u32 first) const {
    Tokens<PARTS, NORM, DIM, DEPTH>::template load<TOKENS, THREADS>(
        PlainRows<DEPTH, OPERAND_PITCH>{shared + OPERAND}, p.x, p.eps, [&](int slot) { return cell(first, slot) * DIM; },
        [&](int slot, i64 place) { valid[slot] = place >= 0 && (!MASKED || p.mask[place / DIM]); });
  }

  // sums[i] = 16 tokens by 16 columns: rows of `a` from `strip` on, rows of `w` from `column` on, over K channels.
  template <int K, int PAIRS, int A_PITCH, int A_PART, int W_PITCH>
  static __device__ __forceinline__ void product(float (&sums)[PAIRS][2][4], u32 a, u32 w) {
    const int lane = threadIdx.x % 32;
    const u32 a_from = a + lane % 16 * A_PITCH + lane / 16 * 16;
    const u32 w_from = w + (lane / 16 * 8 + lane % 8) * W_PITCH + lane / 8 % 2 * 16;
    constexpr int W_PART = (W_PITCH - 16) / WEIGHT_PARTS;
#pragma unroll 1
    for (int begin = 0; begin < K; begin += 32) {  // the tensor core truncates: longer sums are added up outside
      float fresh[PAIRS][2][4] = {};
#pragma unroll
      for (int k = begin; k < begin + 32 && k < K; k += 16) {
        u32 x[PARTS][4];
#pragma unroll
        for (int part = 0; part < PARTS; ++part) load_matrices(x[part], a_from + part * A_PART + k * 2);
#pragma unroll
        for (int n = 0; n < PAIRS; ++n) {
          u32 y[WEIGHT_PARTS][4];
#pragma unroll
          for (int part = 0; part < WEIGHT_PARTS; ++part)
            load_matrices(y[part], w_from + n * 16 * W_PITCH + part * W_PART + k * 2);
          multiply(fresh[n][0], fresh[n][1], x, y);
        }
      }
#pragma unroll
      for (int n = 0; n < PAIRS; ++n) {
#pragma unroll
        for (int r = 0; r < 4; ++r) sums[n][0][r] += fresh[n][0][r], sums[n][1][r] += fresh[n][1][r];
      }
    }
  }

  __device__ __forceinline__ void qkv() const {
    constexpr int PAIRS = QKV_ROWS / 16 % 3 == 0 ? 3 : 1, GROUPS = QKV_ROWS / 16 / PAIRS;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll 1
    for (int unit = threadIdx.x / 32; unit < STRIPS * GROUPS; unit += WARPS) {
      const int strip = unit / GROUPS * 16, column = unit % GROUPS * PAIRS * 16;
      float sums[PAIRS][2][4] = {};
      product<(DIM + 15) / 16 * 16, PAIRS, OPERAND_PITCH, DEPTH * 2, QKV_PITCH>(
          sums, shared + OPERAND + strip * OPERAND_PITCH, shared + column * QKV_PITCH);
#pragma unroll
      for (int n = 0; n < 2 * PAIRS; ++n) {
        const int at = column + n * 8 + c * 2, channel = at % HEAD;
        const float2 factor = *reinterpret_cast<const float2*>(p.qkv.factor + at);
        const float2 bias = *reinterpret_cast<const float2*>(p.qkv.bias + at);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int slot = strip + half * 8 + g;
          float a = sums[n / 2][n % 2][2 * half] * factor.x + bias.x;
          float b = sums[n / 2][n % 2][2 * half + 1] * factor.y + bias.y;
          if (ROTATED > 0 && at < 2 * INNER && channel < ROTATED) {
            const int position = min(slot % SLOT, p.length - 1);
            const float2 angle = *reinterpret_cast<const float2*>(p.rotations + position * ROTATED + channel);
            const float turned = a * angle.x - b * angle.y;
            b = a * angle.y + b * angle.x;
            a = turned;
          }
          const bool keep = at < INNER || valid[slot];
          Products::store(shared + HEADS_AT + slot * HEADS_PITCH + at / HEAD * (PARTS * HEAD * 2), channel,
                          keep ? a : 0.0f, keep ? b : 0.0f);
        }
      }
    }
  }

  __device__ __forceinline__ void attend() const {
    constexpr int TILES = SLOT / 8;
    const float factor = p.score_scale * 1.4426950408889634f;  // to base 2
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll 1
    for (int unit = threadIdx.x / 32; unit < STRIPS * HEADS; unit += WARPS) {
      const int head = unit % HEADS, strip = unit / HEADS * 16, first = strip / SLOT * SLOT;
      const u32 own = shared + HEADS_AT + head * (PARTS * HEAD * 2);
      const u32 keys = own + first * HEADS_PITCH + INNER * PARTS * 2, values = keys + INNER * PARTS * 2;
      typename Products::template Query<1> query;
      Products::template load_query<1>(query, own + strip * HEADS_PITCH);
      float s[1][TILES][4] = {};
      Products::template scores<1, SLOT>(s, query, keys);

      float top[2] = {minus_infinity(), minus_infinity()}, total[2] = {0.0f, 0.0f};
#pragma unroll
      for (int n = 0; n < TILES; ++n) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int key = n * 8 + c * 2 + r % 2;
          const bool seen = valid[first + key] && (!CAUSAL || key <= strip - first + g + r / 2 * 8);
          s[0][n][r] = seen ? s[0][n][r] : minus_infinity();
          top[r / 2] = fmaxf(top[r / 2], s[0][n][r]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        top[half] = quad_max(top[half]);
        const float most = top[half] == minus_infinity() ? 0.0f : top[half];
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
#pragma unroll
          for (int r = 2 * half; r < 2 * half + 2; ++r) {
            s[0][n][r] = exp2_approx((s[0][n][r] - most) * factor + Products::BOOST);
            total[half] += s[0][n][r];
          }
        }
        total[half] = quad_sum(total[half]);
      }
      float o[1][HEAD / 8][4] = {};
#pragma unroll
      for (int key = 0; key < SLOT; key += 32) {
        constexpr int STEP = SLOT < 32 ? SLOT : 32;
        if constexpr (SLOT % 32 == 0 || SLOT < 32) {
          Products::template accumulate<1, STEP>(o, weights<STEP>(s, key), values + key * HEADS_PITCH);
        } else {
          if (key + 32 <= SLOT) {
            Products::template accumulate<1, 32>(o, weights<32>(s, key), values + key * HEADS_PITCH);
          } else {
            Products::template accumulate<1, 16>(o, weights<16>(s, key), values + key * HEADS_PITCH);
          }
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float gain = total[half] == 0.0f ? 0.0f : 1.0f / total[half];  // no valid key: 0
        const u32 row = shared + OPERAND + (strip + half * 8 + g) * OPERAND_PITCH + head * HEAD * 2;
#pragma unroll
        for (int n = 0; n < HEAD / 8; ++n) {
          const Parts<PARTS> value(o[0][n][2 * half] * gain, o[0][n][2 * half + 1] * gain);
#pragma unroll
          for (int part = 0; part < PARTS; ++part)
            store_shared(row + part * OUT_DEPTH * 2 + n * 16 + c * 4, value.part[part]);
        }
      }
    }
  }

  // The weights of KEYS keys from `key` on.
  template <int KEYS>
  static __device__ __forceinline__ const float (&weights(const float (&s)[1][SLOT / 8][4], int key))[1][KEYS / 8][4] {
    return reinterpret_cast<const float(&)[1][KEYS / 8][4]>(s[0][key / 8]);
  }

  __device__ __forceinline__ void finish(u32 first) const {
    constexpr int GROUPS = OUT_ROWS / 16;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll 1
    for (int unit = threadIdx.x / 32; unit < STRIPS * GROUPS; unit += WARPS) {
      const int strip = unit / GROUPS * 16, column = unit % GROUPS * 16 + c * 2;
      const i64 place[2] = {cell(first, strip + g), cell(first, strip + g + 8)};
      float2 r[2][2] = {};  // half of the strip, half of the columns
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          if (RESIDUAL && place[half] >= 0 && column + n * 8 < DIM)
            r[half][n] = *reinterpret_cast<const float2*>(p.x + place[half] * DIM + column + n * 8);
        }
      }
      float sums[1][2][4] = {};
      product<INNER, 1, OPERAND_PITCH, OUT_DEPTH * 2, OUT_PITCH>(
          sums, shared + OPERAND + strip * OPERAND_PITCH,
          shared + QKV_ROWS * QKV_PITCH + unit % GROUPS * 16 * OUT_PITCH);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float2 factor = *reinterpret_cast<const float2*>(p.out.factor + column + n * 8);
        const float2 bias = *reinterpret_cast<const float2*>(p.out.bias + column + n * 8);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (place[half] < 0 || column + n * 8 >= DIM) continue;
          r[half][n].x += sums[0][n][2 * half] * factor.x + bias.x;
          r[half][n].y += sums[0][n][2 * half + 1] * factor.y + bias.y;
          *reinterpret_cast<float2*>(p.y + place[half] * DIM + column + n * 8) = r[half][n];
        }
      }
    }
  }

  __device__ __forceinline__ void run() const {
    load_weight<QKV_ROWS, WEIGHT_PARTS * DEPTH * 2, QKV_PITCH>(shared, p.qkv.rows);
    load_weight<OUT_ROWS, WEIGHT_PARTS * OUT_DEPTH * 2, OUT_PITCH>(shared + QKV_ROWS * QKV_PITCH, p.out.rows);
    copy_commit();
    wait_for_previous_grid();
    let_next_grid_start();
    for (u32 first = blockIdx.x * SEQUENCES; first < p.sequences; first += gridDim.x * SEQUENCES) {
      tokens(first);
      copy_wait<0>();
      __syncthreads();
      qkv();
      __syncthreads();
      attend();
      __syncthreads();
      finish(first);
      __syncthreads();
    }
  }
};

#if __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
constexpr int kMultiprocessorShared = 228 * 1024;
#elif __CUDA_ARCH__ == 800
constexpr int kMultiprocessorShared = 164 * 1024;
#else
constexpr int kMultiprocessorShared = 100 * 1024;
#endif

// Blocks that the registers should allow: as many as shared memory does.
template <class Block>
constexpr int blocks_of_multiprocessor() {
  return 2 * (Block::SHARED_BYTES + 1024) <= kMultiprocessorShared ? 2 : 1;
}

template <int PARTS, NormKind NORM, int DIM, int HEADS, int HEAD, int SLOT, int ROTATED, bool CAUSAL, bool MASKED, bool RESIDUAL>
__global__ void __launch_bounds__(256, blocks_of_multiprocessor<
    ShortSequences<PARTS, NORM, DIM, HEADS, HEAD, SLOT, ROTATED, CAUSAL, MASKED, RESIDUAL>>()) short_sequences(const ShortParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Block = ShortSequences<PARTS, NORM, DIM, HEADS, HEAD, SLOT, ROTATED, CAUSAL, MASKED, RESIDUAL>;
  Block{p, shared_address(memory), memory + Block::VALID_AT}.run();
}

}  // namespace warpweave::kernels::split
