// fp16 ends at 65504 and has few digits below 2^-14: weights with a norm's gain in them get a power of two
// taken out, which is multiplied back in float32.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "warpweave/types.h"

namespace warpweave::cuda {

// The exponent of what to divide `weights` by, so that the largest finite one is below 2^14 and at least half
// of that; at least -120. 0 in other types, and where all are zero.
inline int exponent_taken_out(std::span<const float> weights, Precision precision) {
  if (precision != Precision::fp16) return 0;
  float largest = 0;
  for (const float w : weights)
    if (std::isfinite(w)) largest = std::max(largest, std::fabs(w));
  if (largest == 0) return 0;
  int exponent = 0;
  std::frexp(largest, &exponent);
  return std::max(exponent - 14, -120);
}

}  // namespace warpweave::cuda
