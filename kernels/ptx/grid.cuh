// Programmatic dependent launch (9.0 and up; nothing on older devices), and barriers of a part of a block.
#pragma once

#include "ptx/types.cuh"

namespace warpweave {

// Returns when the grids that this one depends on are complete and their writes visible. Before it, read only
// what no earlier launch writes (weights).
__device__ __forceinline__ void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next grid may start to be scheduled; call it after wait_for_previous_grid(), so that two launches at most overlap.
__device__ __forceinline__ void let_next_grid_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Barrier `id` (1 to 15; 0 is __syncthreads) of `threads` threads, a multiple of 32.
__device__ __forceinline__ void named_barrier(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace warpweave
