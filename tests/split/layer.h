// A layer with its default options and a bias of q, k and v, for the tests of packing.
#pragma once

#include <cmath>
#include <cstdint>

#include "graph/layers/axial_attention.h"

namespace warpweave::cuda::split {

inline graph::AxialAttention layer(std::int64_t dim, std::int64_t heads, std::int64_t head_dim) {
  graph::AxialAttention a;
  a.dim = dim, a.heads = heads, a.head_dim = head_dim, a.qkv_bias = true;
  a.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  return a;
}

}  // namespace warpweave::cuda::split
