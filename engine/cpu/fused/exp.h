// Powers of two, the only exponential here: e^x is exp2(x * log2(e)).
//
// x = n + f with n the nearest integer, |f| <= 1/2, 2^f by a polynomial. Coefficients: minimax for the
// relative error with 2^0 = 1 exact (iteratively reweighted least squares on Chebyshev nodes), error 2.0e-9
// before rounding. Together less than 1 ulp wherever the result is normal (tests/cpu_fused); subnormal
// results are right to their spacing, larger arguments give infinity, smaller ones zero; NaN stays.
#pragma once

#include "cpu/fused/kernels.h"

namespace warpweave::cpu::fused::WARPWEAVE_ISA {

WARPWEAVE_INLINE V exp2(V x) {
  V n, f;
  split(x, n, f);
  V p = broadcast(0x1.41fbbcp-13f);
  p = fma(p, f, broadcast(0x1.5f3e54p-10f));
  p = fma(p, f, broadcast(0x1.3b2d4cp-7f));
  p = fma(p, f, broadcast(0x1.c6aee8p-5f));
  p = fma(p, f, broadcast(0x1.ebfbdcp-3f));
  p = fma(p, f, broadcast(0x1.62e430p-1f));
  p = fma(p, f, broadcast(1.0f));
  return times_power_of_two(p, n);
}

static void exp2_array(float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kLanes) store_part(x + i, exp2(load_part(x + i, n - i)), n - i);
}

}  // namespace warpweave::cpu::fused::WARPWEAVE_ISA
