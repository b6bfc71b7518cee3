// Exponentials of base 2 for the weights of attention, by the special-function unit and by the FMA pipe.
#pragma once

#include "ptx/math.cuh"

namespace warpweave::kernels::long_attention {

__device__ __forceinline__ float saturated_fma(float a, float b, float c) {  // within [0, 1]; NaN gives 0
  float d;
  asm("fma.rn.ftz.sat.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
  return d;
}

// 2^(s factor - base), that exponent held within +-126, by a polynomial of degree 3 (relative error 2^-13.7, below
// half a unit of f16). Eight instructions, none of the special-function unit.
__device__ __forceinline__ float exp2_polynomial(float s, float factor, float base) {
  constexpr float kRange = 252.0f, kRound = 12582912.0f - 126.0f;  // the latter's unit is 1
  const float y = saturated_fma(s, factor * (1.0f / kRange), 0.5f - base * (1.0f / kRange));
  const float shifted = __fmaf_rn(y, kRange, kRound);  // its last bits: the exponent, rounded
  const float fraction = __fmaf_rn(y, kRange, kRound - shifted);
  const float p = __fmaf_rn(__fmaf_rn(__fmaf_rn(0.05517167f, fraction, 0.24261113f), fraction, 0.69326097f), fraction,
                            0.99992806f);
  return __uint_as_float((__float_as_uint(shifted) << 23) + __float_as_uint(p));
}

// Whether element `i` of a tile is one of the SHARE in 16 that take the polynomial: spread evenly.
template <int SHARE>
__device__ constexpr bool by_polynomial(int i) {
  return i * SHARE % 16 + SHARE >= 16 && SHARE > 0;
}

}  // namespace warpweave::kernels::long_attention
