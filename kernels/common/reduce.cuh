// Sums and maxima over groups of lanes of a warp; every lane gets the result.
#pragma once

namespace warpweave::kernels {

template <int LANES = 32>
__device__ __forceinline__ float sum_lanes(float v) {
#pragma unroll
  for (int d = LANES / 2; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}

template <int LANES = 32>
__device__ __forceinline__ float max_lanes(float v) {
#pragma unroll
  for (int d = LANES / 2; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
  return v;
}

}  // namespace warpweave::kernels
