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

// The block's tile; neighbouring blocks share tokens. store(sums, constants, token) for each warp's part.
template <int PARTS, int GROUPS, int STAGES, int BLOCKS, class Params, class Store>
__device__ __forceinline__ void wide_linear(const WideLinearParams<Params>& p, const Weight& weight, i64 n, i64 k,
                                            const Store& store) {
  constexpr int TOKENS = GROUPS * 64, A_BYTES = PARTS * TOKENS * STAGE_PART;
  constexpr int STAGE_BYTES = A_BYTES + WEIGHT_PARTS * WIDE_COLUMNS * STAGE_PART;
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 shared = shared_address(memory);
  const u32 tables = shared + STAGES * STAGE_BYTES;
  const u32 across = static_cast<u32>((n + WIDE_COLUMNS - 1) / WIDE_COLUMNS);
  const int first_column = blockIdx.x % across * WIDE_COLUMNS;
  const i64 first = static_cast<i64>(blockIdx.x / across) * TOKENS;
  const int steps = static_cast<int>((k + STAGE_DEPTH - 1) / STAGE_DEPTH);
  Ring<GROUPS, STAGES, STAGE_BYTES, BLOCKS == 1> ring{shared, tables + GROUPS * TileConstants::BYTES, steps};
  const auto send = [&p, first, first_column](u32 stage, u32 full, int turn) {
    copy_tensor(stage, &p.a, full, turn * STAGE_DEPTH, static_cast<int>(first), 0, 0);
    copy_tensor(stage + A_BYTES, &p.weight, full, turn * STAGE_DEPTH, first_column, 0, 0);
  };
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&p.a);
    prefetch_tensor_map(&p.weight);
    ring.prepare();
  }
  wait_for_previous_grid();
  let_next_grid_start();
  if (BLOCKS > 1 && threadIdx.x == 0) ring.load(send);
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
  if (BLOCKS == 1 && group == GROUPS) {
    if (threadIdx.x % 32 == 0) ring.load(send);
    return;
  }
  const TileConstants constants{tables + group * TileConstants::BYTES, first_column};
  constants.fetch(weight);
  WideSums sums;
  multiply_stages<PARTS, TOKENS>(
      sums, ring, send, steps, [&](int, u32 stage) { return stage + group * (64 * STAGE_PART); }, A_BYTES);
  constants.wait(group);
  store(sums, constants, first + group * 64 + threadIdx.x / 32 % 4 * 16);
}

#endif

template <int PARTS, int HEAD, int GROUPS, int STAGES, int BLOCKS>
__global__ void __launch_bounds__(wide_threads(GROUPS, BLOCKS), BLOCKS) wide_to_heads(const __grid_constant__ WideLinearParams<LinearParams> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const HeadsParams& heads = p.linear.heads;
  wide_linear<PARTS, GROUPS, STAGES, BLOCKS>(p, heads.weight, heads.n, p.linear.k,
                                     [&](const WideSums& sums, const TileConstants& constants, i64 token) {
                                       store_wide_heads<PARTS, HEAD>(sums, heads, constants, token);
                                     });
#endif
}

template <int PARTS, bool RESIDUAL, int GROUPS, int STAGES, int BLOCKS>
__global__ void __launch_bounds__(wide_threads(GROUPS, BLOCKS), BLOCKS) wide_to_grid(const __grid_constant__ WideLinearParams<OutputParams> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wide_linear<PARTS, GROUPS, STAGES, BLOCKS>(p, p.linear.weight, p.linear.n, p.linear.k,
                                     [&](const WideSums& sums, const TileConstants& constants, i64 token) {
                                       store_wide_grid<RESIDUAL, BLOCKS == 1 ? 4 : 2>(sums, p.linear, constants, token);
                                     });
#endif
}

}  // namespace warpweave::kernels::split
