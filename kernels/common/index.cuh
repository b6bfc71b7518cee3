// Where a token lies, and loops over more elements than a launch has threads.
#pragma once

#include "common/params.h"
#include "common/types.cuh"

namespace warpweave::kernels {

__device__ __forceinline__ i64 cell_of(const Cells& c, i64 token) {
  if (c.columns == c.pitch) return c.first + token;  // spares the divisions where the slice is dense
  return c.first + token / c.columns * c.pitch + token % c.columns;
}

// Index of element 0 of sequence s.
__device__ __forceinline__ i64 sequence_start(const Sequences& q, i64 s) {
  return s / q.inner * q.outer_stride + s % q.inner * q.inner_stride;
}

__device__ __forceinline__ i64 global_thread() { return static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ i64 all_threads() { return static_cast<i64>(gridDim.x) * blockDim.x; }

}  // namespace warpweave::kernels
