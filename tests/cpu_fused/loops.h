// Every layer as plain loops in float64, sharing nothing with the engine: what cpu_fused is compared with
// here.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/layer.h"
#include "weights/load.h"

namespace warpweave::test {

// x [batch, input...] -> y [batch, output...]; `mask` has one byte per cell of x, or is empty.
std::vector<double> layer_in_loops(const graph::Layer& layer, const weights::LayerWeights& weights,
                                   const std::vector<float>& x, std::int64_t batch,
                                   const graph::CellShape& input, const std::vector<std::uint8_t>& mask);

}  // namespace warpweave::test
