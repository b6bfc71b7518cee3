// Finds what cannot be a weight: NaN, infinity, and float64 values beyond float32.
#pragma once

#include <string>

#include "warpweave/tensor.h"

namespace warpweave::weights {

// Empty when all values are finite; otherwise for a message: "has 3 NaN or infinite values, the first at [2,
// 7]", "has a value beyond float32, 1e+300 at [0]". `converted` is `stored` in float32.
std::string non_finite(const Tensor& stored, const Tensor& converted);

}  // namespace warpweave::weights
