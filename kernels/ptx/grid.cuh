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

// The next grid may start to be scheduled; call it after wait_for_previous_grid(), so that two launches at
// most overlap.
__device__ __forceinline__ void let_next_grid_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Barrier `id` (1 to 15; 0 is __syncthreads) of `threads` threads, a multiple of 32.
__device__ __forceinline__ void named_barrier(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same, and whether the condition holds for any of the threads.
__device__ __forceinline__ bool named_barrier_any(u32 id, u32 threads, bool condition) {
  u32 any;
  asm volatile(
      "{\n"
      ".reg .pred mine, all;\n"
      "setp.ne.u32 mine, %3, 0;\n"
      "barrier.red.or.pred all, %1, %2, mine;\n"
      "selp.u32 %0, 1, 0, all;\n"
      "}\n"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<u32>(condition))
      : "memory");
  return any != 0;
}

}  // namespace warpweave
