// Product of tokens by a weight, operands in parts (parts.cuh), on mma.sync, with what follows it:
//
//   HEAD > 0: r goes to y [token, column / HEAD, PARTS, HEAD], in parts, as attention reads q, k and v; before that, the
//             first channels of the heads of q and k are rotated (RoPE; pairs are neighbours)
//   HEAD = 0: y[cell(t), n] = r[t, n] + residual[cell(t), n], float32
//
// A block owns TOKENS x COLUMNS of r and takes 32 of k at a time through three stages of shared memory (cp.async). A warp
// owns 32 x 32. The tensor core's sums are cut every 32 of k and added up in float32, since it truncates. The
// order of the sum does not depend on the token's place.
// Limit: 6 k n flops a token at fp16's rate; bytes of a and y.
#pragma once

#include "common/index.cuh"
#include "ptx/copy.cuh"
#include "ptx/matrix.cuh"
#include "ptx/mma.cuh"
#include "split/params.h"
#include "split/parts.cuh"

namespace warpweave::kernels::split {

template <int HEAD>
struct Linear {
  static constexpr int WARPS_DOWN = 4, WARPS_ACROSS = 2, THREADS = 32 * WARPS_DOWN * WARPS_ACROSS;
  static constexpr int WARP_COLUMNS = 32, TOKENS = 32 * WARPS_DOWN, COLUMNS = WARP_COLUMNS * WARPS_ACROSS;
  static constexpr int DEPTH = 32, STAGES = 3;  // of k
  static constexpr int ROW_BYTES = PARTS * DEPTH * 2 + 16;  // an odd multiple of 16
  static constexpr int A_BYTES = TOKENS * ROW_BYTES, STAGE_BYTES = A_BYTES + COLUMNS * ROW_BYTES;
  static constexpr int TILES = WARP_COLUMNS / 8;
  // The result passes through shared memory, a warp's own part of it: rows of 4 bytes a column.
  static constexpr int RESULT_ROW = WARP_COLUMNS * (HEAD ? 2 * PARTS : 4) + 16;
  static_assert(THREADS * RESULT_ROW <= STAGES * STAGE_BYTES);
  using Sums = float[2][TILES][4];

  const LinearParams& p;
  i64 first_token;
  int first_column;

  // k from `first` on of the block's tokens and columns; zeros past the end. A thread keeps to one piece of 16 bytes of
  // every ROWS-th row.
  __device__ __forceinline__ void copy(u32 stage, int first) const {
    constexpr int PIECES = PARTS * DEPTH / 8, ROWS = THREADS / PIECES;
    const int row = threadIdx.x / PIECES, part = threadIdx.x % PIECES / (DEPTH / 8);
    const int k = first + threadIdx.x % (DEPTH / 8) * 8;
    const u32 to = stage + row * ROW_BYTES + threadIdx.x % PIECES * 16;
    const f16* const a = static_cast<const f16*>(p.a) + ((first_token + row) * PARTS + part) * p.k + k;
#pragma unroll
    for (int r = 0; r < TOKENS; r += ROWS) {
      const bool present = first_token + row + r < p.tokens && k < p.k;
      copy_async<16>(to + r * ROW_BYTES, present ? a + r * PARTS * p.k : p.a, present);
    }
    const i64 depth = (p.k + DEPTH - 1) / DEPTH * DEPTH;
    const f16* const w =
        static_cast<const f16*>(p.w) + (static_cast<i64>(first_column + row) * PARTS + part) * depth + k;
#pragma unroll
    for (int r = 0; r < COLUMNS; r += ROWS) copy_async<16>(to + A_BYTES + r * ROW_BYTES, w + r * PARTS * depth);
  }

  __device__ __forceinline__ void multiply(Sums& sums, u32 stage, int down, int across) const {
    const int lane = threadIdx.x % 32;
    const u32 a_from = stage + (down * 32 + lane % 16) * ROW_BYTES + lane / 16 * 16;
    const u32 b_from = stage + A_BYTES + (across * WARP_COLUMNS + lane / 16 * 8 + lane % 8) * ROW_BYTES +
                       lane / 8 % 2 * 16;
#pragma unroll
    for (int k = 0; k < DEPTH / 16; ++k) {
      u32 a[2][PARTS][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < PARTS; ++i)
          load_matrices(a[m][i], a_from + m * 16 * ROW_BYTES + i * DEPTH * 2 + k * 32);
      }
#pragma unroll
      for (int n = 0; n < TILES; n += 2) {
        u32 b[PARTS][4];
#pragma unroll
        for (int i = 0; i < PARTS; ++i) load_matrices(b[i], b_from + n * 8 * ROW_BYTES + i * DEPTH * 2 + k * 32);
#pragma unroll
        for (int m = 0; m < 2; ++m) split::multiply(sums[m][n], sums[m][n + 1], a[m], b);
      }
    }
  }

  __device__ __forceinline__ void run(u32 shared) const {
    const int warp = threadIdx.x / 32, down = warp / WARPS_ACROSS, across = warp % WARPS_ACROSS;
    const int count = static_cast<int>((p.k + DEPTH - 1) / DEPTH);
    copy(shared, 0);
    copy_commit();
    if (count > 1) copy(shared + STAGE_BYTES, DEPTH);
    copy_commit();

    Sums total = {};
    u32 here = shared, after = shared + STAGE_BYTES, free = shared + 2 * STAGE_BYTES;
    for (int stage = 0; stage < count; ++stage) {
      copy_wait<1>();
      __syncthreads();  // this stage is here, and nobody uses the one before it any more
      if (stage + 2 < count) copy(free, (stage + 2) * DEPTH);
      copy_commit();
      Sums fresh = {};
      multiply(fresh, here, down, across);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
#pragma unroll
          for (int r = 0; r < 4; ++r) total[m][n][r] += fresh[m][n][r];
        }
      }
      const u32 used = here;
      here = after;
      after = free;
      free = used;
    }
    __syncthreads();
    const u32 result = shared + warp * 32 * RESULT_ROW;
    const i64 token = first_token + down * 32;
    const int column = first_column + across * WARP_COLUMNS;
    finish(total, result, token, column);
    __syncwarp();
    if constexpr (HEAD > 0) {
      store_heads(result, token, column);
    } else {
      store_cells(result, token, column);
    }
  }

  // Factor, bias and rotation; to the warp's rows of shared memory.
  __device__ __forceinline__ void finish(const Sums& total, u32 result, i64 token, int column) const {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    const bool rotate = HEAD > 0 && p.rotations && column < p.rotated;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m * 16 + half * 8 + g;
        const float* turn = nullptr;
        if (rotate)
          turn = p.rotations + (token + row) / p.position_divisor % p.length * p.rotated_channels;
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
          const int at = n * 8 + c * 2;
          const float2 factor = *reinterpret_cast<const float2*>(p.factor + column + at);
          const float2 bias = *reinterpret_cast<const float2*>(p.bias + column + at);
          float a = total[m][n][2 * half] * factor.x + bias.x, b = total[m][n][2 * half + 1] * factor.y + bias.y;
          if constexpr (HEAD > 0) {
            const int channel = (column + at) % HEAD;
            if (rotate && column + at < p.rotated && channel < p.rotated_channels) {
              const float2 angle = *reinterpret_cast<const float2*>(turn + channel);
              const float first = a * angle.x - b * angle.y;
              b = a * angle.y + b * angle.x;
              a = first;
            }
            const Parts value(a, b);
#pragma unroll
            for (int i = 0; i < PARTS; ++i)
              store_shared(result + row * RESULT_ROW + i * WARP_COLUMNS * 2 + at * 2, value.part[i]);
          } else {
            store_shared(result + row * RESULT_ROW + at * 4, __float_as_uint(a));
            store_shared(result + row * RESULT_ROW + at * 4 + 4, __float_as_uint(b));
          }
        }
      }
    }
  }

  __device__ __forceinline__ void store_heads(u32 result, i64 token, int column) const {
    constexpr int CHUNKS = WARP_COLUMNS / 8;  // 16 bytes, of a part
    for (int i = threadIdx.x % 32; i < 32 * PARTS * CHUNKS; i += 32) {
      const int row = i / (PARTS * CHUNKS), part = i / CHUNKS % PARTS, chunk = i % CHUNKS;
      const int n = column + chunk * 8;
      if (token + row >= p.tokens || n >= p.n) continue;
      u32 v[4];
      load_shared(v, result + row * RESULT_ROW + part * WARP_COLUMNS * 2 + chunk * 16);
      constexpr int WIDTH = HEAD > 0 ? HEAD : 1;
      f16* const to = static_cast<f16*>(p.y) + (token + row) * PARTS * p.n + n / WIDTH * (PARTS * WIDTH) +
                      part * WIDTH + n % WIDTH;
      store_global(to, v[0], v[1], v[2], v[3]);
    }
  }

  __device__ __forceinline__ void store_cells(u32 result, i64 token, int column) const {
    constexpr int CHUNKS = WARP_COLUMNS / 4;  // 16 bytes
    const int lane = threadIdx.x % 32;
    const i64 cell = cell_of(p.cells, token + lane < p.tokens ? token + lane : 0);  // of row `lane`
    for (int i = lane; i < 32 * CHUNKS; i += 32) {
      const int row = i / CHUNKS, n = column + i % CHUNKS * 4;
      const i64 place = __shfl_sync(0xffffffffu, cell, row) * p.n + n;
      if (token + row >= p.tokens || n >= p.n) continue;
      u32 v[4];
      load_shared(v, result + row * RESULT_ROW + i % CHUNKS * 16);
      if (p.residual) {
        u32 x[4];
        load_global(x, static_cast<const float*>(p.residual) + place);
#pragma unroll
        for (int r = 0; r < 4; ++r) v[r] = __float_as_uint(__uint_as_float(v[r]) + __uint_as_float(x[r]));
      }
      store_global(static_cast<float*>(p.y) + place, v[0], v[1], v[2], v[3]);
    }
  }
};

template <int HEAD>
__global__ void __launch_bounds__(256, 2) linear(const LinearParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Block = Linear<HEAD>;
  const i64 across = (p.n + Block::COLUMNS - 1) / Block::COLUMNS;
  Block{p, blockIdx.x / across * Block::TOKENS, static_cast<int>(blockIdx.x % across) * Block::COLUMNS}.run(
      shared_address(memory));
}

}  // namespace warpweave::kernels::split
