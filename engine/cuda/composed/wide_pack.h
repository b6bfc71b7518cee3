// Weights of wide layers (wide_layer.h) as their kernels take them.
#pragma once

#include <vector>

#include "cuda/family.h"

namespace warpweave::cuda {

struct PackedProjection {
  std::vector<float> weight;  // [rows, dim], with the norm's gain, in fp16 divided by `unit`
  std::vector<float> bias;    // with the norm's
  float unit = 1;             // a power of two
};
// With the norm folded in. With a layer norm, rows are rounded to what `precision` has, and sum up to zero.
PackedProjection pack_qkv(const WideShape& shape, const WideWeights& weights, Precision precision);

}  // namespace warpweave::cuda
