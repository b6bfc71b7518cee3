// Division by a number that is known before the launch: a multiplication and a shift.
#pragma once

#include "layout/portable.h"

namespace warpweave::layout {

// For dividends below 2^30 and divisors of 1 .. 2^30: with 2^(shift - 30) the smallest power of two that is
// not below the divisor, multiplier = ceil(2^shift / divisor) is too large by less than 2^-30 of itself, so
// that the quotient's fraction, a multiple of 1 / divisor, does not reach 1.
struct Divisor {
  unsigned int multiplier, shift;

  static WARPWEAVE_BOTH Divisor of(unsigned int divisor) {
    unsigned int shift = 30;
    while ((1ull << (shift - 30)) < divisor) ++shift;
    return {static_cast<unsigned int>(((1ull << shift) + divisor - 1) / divisor), shift};
  }
  WARPWEAVE_BOTH unsigned int divide(unsigned int n) const {
    return static_cast<unsigned int>(static_cast<unsigned long long>(n) * multiplier >> shift);
  }
};

}  // namespace warpweave::layout
