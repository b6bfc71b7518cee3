// A block's tiles of a product of tokens by a weight on compute capability 9.0, operands in parts (parts.cuh): wgmma on
// operands that lie in shared memory. What tile.cuh is for mma.sync, and with the same results to store.
//
// GROUPS warpgroups own 64 tokens x 128 columns each; one more warp has the copy engine bring 32 of k at a time through a
// ring of STAGES. Of a stage, and of tokens in shared memory, a panel is [part][row][32 of k], 64 bytes a row, turned as
// the copy engine does it.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "split/tile.cuh"

namespace warpweave::kernels::split {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int WIDE_COLUMNS = 128;
using WideSums = float[WIDE_COLUMNS / 8][4];

// Address in a panel that begins at a multiple of 512 bytes.
__device__ __forceinline__ u32 panel_address(u32 panel, int row, int k) {
  return panel + row * STAGE_PART + ((k / 8) ^ (row / 2 % 4)) * 16 + k % 8 * 2;
}

// Of STAGE_BYTES bytes each, from `stages` on; their barriers lie at `barriers`.
template <int GROUPS, int STAGES, int STAGE_BYTES>
struct Ring {
  u32 stages, barriers;
  u32 at = 0, parity = 0;

  __device__ __forceinline__ u32 full() const { return barriers + at * 16; }
  __device__ __forceinline__ u32 empty() const { return full() + 8; }
  __device__ __forceinline__ u32 stage() const { return stages + at * STAGE_BYTES; }
  __device__ __forceinline__ void advance() {
    if (++at == STAGES) at = 0, parity ^= 1;
  }
  // By one thread; the block meets afterwards.
  __device__ __forceinline__ void prepare() const {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(barriers + i * 16, 1);
      barrier_init(barriers + i * 16 + 8, GROUPS * 4);
    }
    barrier_init_fence();
  }
  // The loader waits until the stage is free.
  __device__ __forceinline__ void acquire() const {
    barrier_wait(empty(), parity ^ 1);
    barrier_expect(full(), STAGE_BYTES);
  }
  static __device__ __forceinline__ void release(u32 empty) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
  }
};

// sums += 64 rows of panels at `a` times 128 rows of panels at `w`, over 32 of k; TOKENS: rows of a panel of `a`. In fp32
// sums begin at zero and are added up outside, since the tensor core truncates as it accumulates. In tf32 the product is
// under way on return, and the first one sets the sums.
template <int PARTS, int TOKENS, bool FIRST>
__device__ __forceinline__ void multiply_panels(WideSums& sums, u32 a, u32 w) {
  const u64 a_high = swizzled_rows<STAGE_PART>(a), w_high = swizzled_rows<STAGE_PART>(w);
  const u64 w_low = w_high + WIDE_COLUMNS * STAGE_PART / 16;
  using Product = Wgmma<f16, WIDE_COLUMNS>;
  if constexpr (PARTS == 2) {
    const u64 a_low = a_high + TOKENS * STAGE_PART / 16;
    WideSums fresh;
    wgmma_fence();
    Product::template shared<false>(fresh, a_low, w_high);
    Product::template shared<true>(fresh, a_high, w_low);
    Product::template shared<true>(fresh, a_high, w_high);
    Product::template shared<true>(fresh, a_low + 2, w_high + 2);
    Product::template shared<true>(fresh, a_high + 2, w_low + 2);
    Product::template shared<true>(fresh, a_high + 2, w_high + 2);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(fresh);
#pragma unroll
    for (int n = 0; n < WIDE_COLUMNS / 8; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) sums[n][r] = FIRST ? fresh[n][r] : sums[n][r] + fresh[n][r];
    }
  } else {
    wgmma_fence();
    Product::template shared<!FIRST>(sums, a_high, w_low);
    Product::template shared<true>(sums, a_high, w_high);
    Product::template shared<true>(sums, a_high + 2, w_low + 2);
    Product::template shared<true>(sums, a_high + 2, w_high + 2);
    wgmma_commit();
  }
}

// sums = the product over `steps` stages; a_panel(step, stage) is where the group's tokens lie.
template <int PARTS, int TOKENS, class R, class Panel>
__device__ __forceinline__ void multiply_stages(WideSums& sums, R& ring, int steps, const Panel& a_panel, u32 weight_at) {
  barrier_wait(ring.full(), ring.parity);
  multiply_panels<PARTS, TOKENS, true>(sums, a_panel(0, ring.stage()), ring.stage() + weight_at);
  u32 before = ring.empty();
  if constexpr (PARTS == 2) R::release(before);
  ring.advance();
#pragma unroll 1
  for (int step = 1; step < steps; ++step) {
    barrier_wait(ring.full(), ring.parity);
    multiply_panels<PARTS, TOKENS, false>(sums, a_panel(step, ring.stage()), ring.stage() + weight_at);
    if constexpr (PARTS == 2) {
      R::release(ring.empty());
    } else {
      wgmma_wait<1>();
      R::release(before);
      before = ring.empty();
    }
    ring.advance();
  }
  if constexpr (PARTS == 1) {
    wgmma_wait<0>();
    wgmma_settle(sums);
    R::release(before);
  }
}

// Calls store(sums, column) for 32 columns at a time.
template <class Store>
__device__ __forceinline__ void for_each_piece(const WideSums& sums, const Store& store) {
#pragma unroll
  for (int i = 0; i < WIDE_COLUMNS / 32; ++i)
    store(reinterpret_cast<const float(&)[1][4][4]>(sums[4 * i]), 32 * i);
}

#endif

}  // namespace warpweave::kernels::split
