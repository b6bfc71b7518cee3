// Product of tokens in parts (parts.cuh) by a weight, for compute capability 9.0, with what follows it:
//
//   wide_to_heads  r goes to q, k and v in parts, as store_heads has it
//   wide_to_grid   y[cell(t), n] = r[t, n] + residual[cell(t), n], float32
//
// A block owns GROUPS x 64 tokens x 128 columns; both operands stream (wide_tile.cuh). The order of the sum does not depend
// on the token's place. Stages of 32 KB with 128 tokens in fp32.
// Limit: 6 k n flops a token at fp16's rate; bytes of a and y.
#pragma once

#include "split/wide_tile.cuh"

namespace warpweave::kernels::split {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The block's tile; neighbouring blocks share tokens. store(piece, token, column) for each piece.
template <int PARTS, int GROUPS, int STAGES, class Params, class Store>
__device__ __forceinline__ void wide_linear(const WideLinearParams<Params>& p, i64 n, i64 k, const Store& store) {
  constexpr int TOKENS = GROUPS * 64, A_BYTES = PARTS * TOKENS * STAGE_PART;
  constexpr int STAGE_BYTES = A_BYTES + WEIGHT_PARTS * WIDE_COLUMNS * STAGE_PART;
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 shared = shared_address(memory);
  Ring<GROUPS, STAGES, STAGE_BYTES> ring{shared, shared + STAGES * STAGE_BYTES};
  const u32 across = static_cast<u32>((n + WIDE_COLUMNS - 1) / WIDE_COLUMNS);
  const int first_column = blockIdx.x % across * WIDE_COLUMNS;
  const i64 first = static_cast<i64>(blockIdx.x / across) * TOKENS;
  const int steps = static_cast<int>((k + STAGE_DEPTH - 1) / STAGE_DEPTH);
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
  if (threadIdx.x == 0) ring.prepare();
  __syncthreads();
  wait_for_previous_grid();
  let_next_grid_start();
  if (group == GROUPS) {
    if (threadIdx.x % 32 == 0) {
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        ring.acquire();
        copy_tensor(ring.stage(), &p.a, ring.full(), step * STAGE_DEPTH, static_cast<int>(first), 0, 0);
        copy_tensor(ring.stage() + A_BYTES, &p.weight, ring.full(), step * STAGE_DEPTH, first_column, 0, 0);
        ring.advance();
      }
    }
    return;
  }
  WideSums sums;
  multiply_stages<PARTS, TOKENS>(
      sums, ring, steps, [&](int, u32 stage) { return stage + group * (64 * STAGE_PART); }, A_BYTES);
  const i64 token = first + group * 64 + threadIdx.x / 32 % 4 * 16;
  for_each_piece(sums, [&](const auto& piece, int column) { store(piece, token, first_column + column); });
}

#endif

template <int PARTS, int HEAD, int GROUPS, int STAGES>
__global__ void __launch_bounds__(GROUPS * 128 + 32, 1) wide_to_heads(const __grid_constant__ WideLinearParams<LinearParams> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wide_linear<PARTS, GROUPS, STAGES>(p, p.linear.heads.n, p.linear.k, [&](const auto& piece, i64 token, int column) {
    store_heads<PARTS, HEAD>(piece, p.linear.heads, token, column);
  });
#endif
}

template <int PARTS, bool RESIDUAL, int GROUPS, int STAGES>
__global__ void __launch_bounds__(GROUPS * 128 + 32, 1) wide_to_grid(const __grid_constant__ WideLinearParams<OutputParams> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wide_linear<PARTS, GROUPS, STAGES>(p, p.linear.n, p.linear.k, [&](const auto& piece, i64 token, int column) {
    store_grid<RESIDUAL>(piece, p.linear, token, column);
  });
#endif
}

}  // namespace warpweave::kernels::split
