// norm and the projection to q, k and v in one kernel, operands in parts (parts.cuh): x is read once, nothing but q, k
// and v is written.
//
// A block normalises TOKENS tokens into shared memory (a row each, of all channels) and multiplies them by the whole
// weight, which streams through STAGES stages, 32 of k for a few columns at a time; a warp owns 32 x 32 of those.
// Tokens are taken in the order of the slice, so rows and columns of the grid do not differ here.
// Limit: bytes of x, q, k and v; 6 dim n flops a token at fp16's rate.
#pragma once

#include "ptx/grid.cuh"
#include "split/tile.cuh"
#include "split/tokens.cuh"

namespace warpweave::kernels::split {

template <int PARTS, NormKind NORM, int DIM, int HEAD>
struct Project {
  static constexpr int THREADS = 256;
  static constexpr int DEPTH = (DIM + 31) / 32 * 32, STEPS = DEPTH / STAGE_DEPTH;
  static constexpr int TOKENS = DIM > 128 ? 64 : 128, STAGES = DIM > 128 ? 2 : 3;
  static constexpr int DOWN = TOKENS / 32, ACROSS = THREADS / 32 / DOWN, COLUMNS = 32 * ACROSS;  // of warps
  static constexpr int ROW_PITCH = PARTS * DEPTH * 2 + 16, STAGE_BYTES = COLUMNS * WEIGHT_PITCH;
  static constexpr int SHARED_BYTES = TOKENS * ROW_PITCH + STAGES * STAGE_BYTES;

  const HeadsParams& p;
  const float* x;
  i64 first_token;
  u32 shared, stages;

  __device__ __forceinline__ void send(int turn, int turns) const {  // the stage of this turn, if there is one
    if (turn < turns)
      copy_weight<COLUMNS, THREADS>(stages + turn % STAGES * STAGE_BYTES, p.weight, DEPTH, turn / STEPS * COLUMNS,
                                    turn % STEPS * STAGE_DEPTH);
    copy_commit();
  }

  __device__ __forceinline__ void run(float eps) const {
    const int turns = static_cast<int>((p.n + COLUMNS - 1) / COLUMNS) * STEPS;
#pragma unroll
    for (int turn = 0; turn < STAGES - 1; ++turn) send(turn, turns);
    wait_for_previous_grid();
    let_next_grid_start();
    Tokens<PARTS, NORM, DIM, DEPTH>::template load<TOKENS, THREADS>(
        PlainRows<DEPTH, ROW_PITCH>{shared}, x, eps,
        [&](int slot) { return first_token + slot < p.tokens ? cell_of(p.cells, first_token + slot) * DIM : -1; },
        [](int, i64) {});

    const int warp = threadIdx.x / 32, down = warp / ACROSS, across = warp % ACROSS;
    const u32 rows = shared + down * 32 * ROW_PITCH;
    Sums sums = {};
    for (int turn = 0; turn < turns; ++turn) {
      copy_wait<STAGES - 2>();
      __syncthreads();  // this stage is here, and nobody uses the one before it any more
      send(turn + STAGES - 1, turns);
      multiply_stage<PARTS, ROW_PITCH, DEPTH * 2>(
          sums, rows + turn % STEPS * STAGE_DEPTH * 2,
          stages + turn % STAGES * STAGE_BYTES + across * 32 * WEIGHT_PITCH);
      if (turn % STEPS == STEPS - 1) {
        store_heads<PARTS, HEAD>(sums, p, GlobalConstants{p.weight}, first_token + down * 32, turn / STEPS * COLUMNS + across * 32);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int n = 0; n < 4; ++n) sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0.0f;
        }
      }
    }
  }
};

template <int PARTS, NormKind NORM, int DIM, int HEAD>
__global__ void __launch_bounds__(256, 2) project(const ProjectParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Block = Project<PARTS, NORM, DIM, HEAD>;
  const u32 shared = shared_address(memory);
  Block{p.heads, p.x, static_cast<i64>(blockIdx.x) * Block::TOKENS, shared, shared + Block::TOKENS * Block::ROW_PITCH}
      .run(p.eps);
}

}  // namespace warpweave::kernels::split
