// Powers of two, the only exponential here: e^x is exp2(x * log2(e)).
//
// x = n + f with n the nearest integer, |f| <= 1/2, 2^f by a polynomial. Coefficients: minimax for the
// relative error with 2^0 = 1 exact (iteratively reweighted least squares on Chebyshev nodes), error 2.0e-9
// before rounding. Together at most 1.1 ulp wherever the result is normal (tests/cpu_fused); subnormal
// results are right to their spacing, larger arguments give infinity, smaller ones zero, NaN gives a bound,
// not NaN.
#pragma once

#include "cpu/fused/kernels.h"

namespace warpweave::cpu::fused::WARPWEAVE_ISA {

// x in [kExp2Low, kExp2High].
WARPWEAVE_INLINE V exp2_in_range(V x) {
  const V magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const V n = sub(add(x, magic), magic);
  const V f = sub(x, n);
  V p = broadcast(0x1.41fbbcp-13f);
  p = fma(p, f, broadcast(0x1.5f3e54p-10f));
  p = fma(p, f, broadcast(0x1.3b2d4cp-7f));
  p = fma(p, f, broadcast(0x1.c6aee8p-5f));
  p = fma(p, f, broadcast(0x1.ebfbdcp-3f));
  p = fma(p, f, broadcast(0x1.62e430p-1f));
  p = fma(p, f, broadcast(1.0f));
  return times_power_of_two(p, n);
}

WARPWEAVE_INLINE V exp2(V x) { return exp2_in_range(min(max(x, broadcast(kExp2Low)), broadcast(kExp2High))); }
// For arguments that are at most rounding above zero, as in a softmax: one clamp less. -inf gives 0.
WARPWEAVE_INLINE V exp2_nonpositive(V x) { return exp2_in_range(max(x, broadcast(kExp2Low))); }

static void exp2_array(float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kLanes) store_part(x + i, exp2(load_part(x + i, n - i)), n - i);
}

}  // namespace warpweave::cpu::fused::WARPWEAVE_ISA
