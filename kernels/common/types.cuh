// Conversions between float32 and the element types of grids (double, float, f16, bf16).
#pragma once

#include "ptx/types.cuh"

namespace warpweave::kernels {

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(double v) { return static_cast<float>(v); }
__device__ __forceinline__ float to_float(bf16 v) { return __uint_as_float(static_cast<u32>(v.bits) << 16); }
__device__ __forceinline__ float to_float(f16 v) { return Pair<f16>::widen(v.bits); }

// To the nearest value of T, ties to even.
template <class T>
__device__ __forceinline__ T from_float(float v);
template <>
__device__ __forceinline__ float from_float<float>(float v) {
  return v;
}
template <>
__device__ __forceinline__ double from_float<double>(float v) {
  return v;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float v) {
  bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
  return r;
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float v) {
  f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
  return r;
}

// A float that holds a tf32 number (10 bits of mantissa, as tensor cores take it).
struct tf32 {
  float value;
};
__device__ __forceinline__ float to_float(tf32 v) { return v.value; }
template <>
__device__ __forceinline__ tf32 from_float<tf32>(float v) {
  u32 r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));  // ties away from zero
  return {__uint_as_float(r)};
}

// The value rounded to T and back.
template <class T>
__device__ __forceinline__ float rounded(float v) {
  return to_float(from_float<T>(v));
}

}  // namespace warpweave::kernels
