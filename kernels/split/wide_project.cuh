// norm and the projection to q, k and v in one kernel for compute capability 9.0, operands in parts (parts.cuh): x is read
// once, nothing but q, k and v is written.
//
// A block normalises GROUPS x 64 tokens into shared memory and multiplies them by all columns of the weight, 128 at a
// time, which streams (wide_tile.cuh).
// Shared memory: tokens x PARTS x DIM x 2 bytes (128 KB with 128 tokens, dim 256, fp32), stages of 16 KB.
// Limit: bytes of x, q, k and v; 6 dim n flops a token at fp16's rate.
#pragma once

#include "split/tokens.cuh"
#include "split/wide_tile.cuh"

namespace warpweave::kernels::split {

template <int PARTS, NormKind NORM, int DIM, int HEAD, int GROUPS, int STAGES, int BLOCKS>
__global__ void __launch_bounds__(wide_threads(GROUPS, BLOCKS), BLOCKS) wide_project(const __grid_constant__ WideProjectParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int DEPTH = (DIM + 31) / 32 * 32, STEPS = DEPTH / STAGE_DEPTH, TOKENS = GROUPS * 64;
  constexpr int STAGE_BYTES = WEIGHT_PARTS * WIDE_COLUMNS * STAGE_PART, PANELS = PARTS * TOKENS * STAGE_PART;
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 shared = shared_address(memory), stages = shared + STEPS * PANELS;
  const u32 tables = stages + STAGES * STAGE_BYTES;
  const HeadsParams& heads = p.project.heads;
  const int tiles = static_cast<int>((heads.n + WIDE_COLUMNS - 1) / WIDE_COLUMNS);
  Ring<GROUPS, STAGES, STAGE_BYTES, BLOCKS == 1> ring{stages, tables + GROUPS * 2 * TileConstants::BYTES, tiles * STEPS};
  const auto send = [&p](u32 stage, u32 full, int turn) {
    copy_tensor(stage, &p.weight, full, turn % STEPS * STAGE_DEPTH, turn / STEPS * WIDE_COLUMNS, 0, 0);
  };
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&p.weight);
    ring.prepare();
    if (BLOCKS > 1) ring.load(send);
  }
  if constexpr (BLOCKS == 1) {
    __syncthreads();
    if (group == GROUPS) {
      if (threadIdx.x % 32 == 0) ring.load(send);
      return;
    }
  }
  wait_for_previous_grid();
  let_next_grid_start();
  const i64 first = static_cast<i64>(blockIdx.x) * TOKENS;
  Tokens<PARTS, NORM, DIM, DEPTH, (BLOCKS > 1 ? 4 : DIM > 128 ? 16 : 8)>::template load<TOKENS, GROUPS * 128>(
      [&](int slot, int part, int channel) {
        return panel_address(shared + channel / 32 * PANELS + part * (TOKENS * STAGE_PART), slot, channel % 32);
      },
      p.project.x, p.project.eps,
      [&](int slot) { return first + slot < heads.tokens ? cell_of(heads.cells, first + slot) * DIM : -1; },
      [](int, i64) {});
  fence_async_proxy();
  named_barrier(1, GROUPS * 128);
  const u32 own = shared + group * (64 * STAGE_PART);
  const i64 token = first + group * 64 + threadIdx.x / 32 % 4 * 16;
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const TileConstants constants{tables + (group * 2 + tile % 2) * TileConstants::BYTES, tile * WIDE_COLUMNS};
    constants.fetch(heads.weight);
    WideSums sums;
    multiply_stages<PARTS, TOKENS>(sums, ring, send, STEPS, [&](int step, u32) { return own + step * PANELS; }, 0);
    constants.wait(group);
    store_wide_heads<PARTS, HEAD>(sums, heads, constants, token);
  }
#endif
}

}  // namespace warpweave::kernels::split
