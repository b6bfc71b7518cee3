// The layer types that a model file may name.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "graph/layer.h"
#include "graph/params.h"

namespace warpweave::graph {

struct LayerType {
  std::string_view name;
  // Reads the layer's parameters (all but `tensors`) for a grid with `channels` channels.
  std::unique_ptr<Layer> (*parse)(Params& params, std::int64_t channels);
};

std::span<const LayerType> layer_types() noexcept;

}  // namespace warpweave::graph
