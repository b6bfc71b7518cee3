// y[cell(t), n] = act(sum_k a[t, k] w[n, k] + bias[n]) + residual[cell(t), n] in 16 bits on mma.sync, for few channels,
// where the bytes of a and y are the limit.
//
//   a [tokens, k]; w [rows, depth], padded with zeros to whole blocks of 64 rows and whole steps of 64 of k, rows permuted
//   within 32 so that a lane's results are eight neighbouring columns: row 8j + 2c + b is column 8c + 2j + b
//   (cuda/composed/small_product.cpp); bias [n] float32 or null. n and k are multiples of 8.
//
// A block owns 128 tokens x 64 columns, each of its 8 warps 32 x 32 of them. It takes 64 of k at a time through three
// stages of shared memory (cp.async). The order of the sum does not depend on the token's place. Neighbouring blocks
// share tokens, so that they come from L2 but once.
// Shared memory: for each of min(3, k / 64) stages (128 + 64) rows of 144 bytes, 82944 in all. Limit: bytes of a and y, and of residual.
#pragma once

#include "common/activation.cuh"
#include "common/index.cuh"
#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/matrix.cuh"
#include "ptx/mma.cuh"

namespace warpweave::kernels::composed {

template <class T>
struct ProductBlock {
  static constexpr int DOWN = 4, TOKENS = 32 * DOWN, COLUMNS = 64, DEPTH = 64;
  static constexpr int PITCH = DEPTH * 2 + 16, STAGE_BYTES = (TOKENS + COLUMNS) * PITCH;
  using Sums = float[2][4][4];  // 16 tokens, 8 columns, fragment (ptx/mma.cuh)

  const LinearParams& p;
  i64 first_token;
  int first_column;

  // A thread keeps to one piece of 16 bytes of every 32nd row. Zeros past the end of tokens and of k.
  __device__ __forceinline__ void send(u32 stage, int turn, int turns) const {
    if (turn < turns) {
      const int row = threadIdx.x / 8, piece = threadIdx.x % 8, k = turn * DEPTH + piece * 8;
      const u32 to = stage + row * PITCH + piece * 16;
      const T* const a = static_cast<const T*>(p.a) + (first_token + row) * p.k + k;
#pragma unroll
      for (int r = 0; r < TOKENS; r += 32) {
        const bool present = first_token + row + r < p.tokens && k < p.k;
        copy_async<16>(to + r * PITCH, present ? a + r * p.k : p.a, present);
      }
      const int depth = turns * DEPTH;
      const T* const w = static_cast<const T*>(p.w) + static_cast<i64>(first_column + row) * depth + k;
#pragma unroll
      for (int r = 0; r < COLUMNS; r += 32) copy_async<16>(to + (TOKENS + r) * PITCH, w + r * depth);
    }
    copy_commit();
  }

  __device__ __forceinline__ void multiply(Sums& sums, u32 stage) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 a = stage + (warp % DOWN * 32 + lane % 16) * PITCH + lane / 16 * 16;
    const u32 w = stage + (TOKENS + warp / DOWN * 32 + lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 16;
#pragma unroll
    for (int k = 0; k < DEPTH / 16; ++k) {
      u32 x[2][4];
      load_matrices(x[0], a + k * 32);
      load_matrices(x[1], a + 16 * PITCH + k * 32);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        u32 y[4];
        load_matrices(y, w + j * 8 * PITCH + k * 32);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma<T>(sums[m][j], x[m], y[0], y[1]);
          mma<T>(sums[m][j + 1], x[m], y[2], y[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void run(Sums& sums, u32 shared) const {
    const int turns = static_cast<int>((p.k + DEPTH - 1) / DEPTH);
    send(shared, 0, turns);
    send(shared + STAGE_BYTES, 1, turns);
    u32 here = shared, after = shared + STAGE_BYTES, free = shared + 2 * STAGE_BYTES;
    for (int turn = 0; turn < turns; ++turn) {
      copy_wait<1>();
      __syncthreads();  // this stage is here, and nobody uses the one before it any more
      send(free, turn + 2, turns);
      multiply(sums, here);
      const u32 used = here;
      here = after;
      after = free;
      free = used;
    }
  }

  template <Activation A, bool RESIDUAL>
  __device__ __forceinline__ void store(const Sums& sums) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 token = first_token + warp % DOWN * 32 + lane / 4;
    const int column = first_column + warp / DOWN * 32 + lane % 4 * 8;
    if (column >= p.n) return;
    float bias[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) bias[i] = p.bias ? p.bias[column + i] : 0.0f;
#pragma unroll
    for (int row = 0; row < 4; ++row) {  // 8 tokens apart
      if (token + row * 8 >= p.tokens) break;
      const i64 at = cell_of(p.cells, token + row * 8) * p.n + column;
      u32 old[4], result[4];
      if constexpr (RESIDUAL) load_global(old, static_cast<const T*>(p.residual) + at);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const sum = sums[row / 2][j] + row % 2 * 2;
        float first = activate<A>(sum[0] + bias[2 * j]), second = activate<A>(sum[1] + bias[2 * j + 1]);
        if constexpr (RESIDUAL) {
          first += Pair<T>::first(old[j]);
          second += Pair<T>::second(old[j]);
        }
        result[j] = Pair<T>::pack(first, second);
      }
      store_global(static_cast<T*>(p.y) + at, result[0], result[1], result[2], result[3]);
    }
  }
};

template <class T, Activation A, bool RESIDUAL>
__global__ void __launch_bounds__(256, 2) small_product(const LinearParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Block = ProductBlock<T>;
  const i64 across = (p.n + Block::COLUMNS - 1) / Block::COLUMNS;
  const Block block{p, blockIdx.x / across * Block::TOKENS, static_cast<int>(blockIdx.x % across) * Block::COLUMNS};
  typename Block::Sums sums = {};
  wait_for_previous_grid();
  let_next_grid_start();
  block.run(sums, shared_address(memory));
  block.template store<A, RESIDUAL>(sums);
}

}  // namespace warpweave::kernels::composed
