// Scalar functions of one instruction.
#pragma once

#include "ptx/types.cuh"

namespace warpweave {

__device__ __forceinline__ float exp2_approx(float x) {  // relative error 2^-22; 0 at minus infinity
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float rsqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// Softmax without the maximum: weights are exp2(score), right as long as neither they nor their sum leave the
// range in which T and float32 keep their digits. Whoever skips the maximum checks the sum of a row's weights
// by this, and starts again with the maximum where it does not hold (NaN included).
template <class T>
__device__ __forceinline__ bool sum_in_range(float sum);
// Weights multiply values, and those products and their sum must stay in float32's range too: here they do for values
// up to 2^60, and for values from 2^-60 on products that matter are 2^24 times the least normal number.
template <>
__device__ __forceinline__ bool sum_in_range<bf16>(float sum) {
  return sum >= 0x1p-40f && sum <= 0x1p64f;
}
// Weights above 65504 would become infinite; ones below 2^-14 lose digits, which a sum of 1/4 does not notice.
template <>
__device__ __forceinline__ bool sum_in_range<f16>(float sum) {
  return sum >= 0.25f && sum <= 65504.0f;
}

// Over the four lanes that share a row of a fragment.
__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

}  // namespace warpweave
