// What a Model holds.
#pragma once

#include <vector>

#include "graph/layer.h"
#include "weights/load.h"

namespace warpweave::detail {

struct ModelData {
  graph::Graph graph;
  std::vector<weights::LayerWeights> weights;  // one per node of the graph
};

}  // namespace warpweave::detail
