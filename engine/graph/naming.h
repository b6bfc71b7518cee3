// From a layer's canonical tensor names to those of the weight file: the `tensors` key of a layer.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "graph/layer.h"
#include "graph/text.h"
#include "graph/yaml.h"

namespace warpweave::graph {

struct RepeatIndex {  // of one `repeat` around a layer
  std::string name;
  std::int64_t value = 0;
  int line = 0;  // of the repeat
};

// Fills in node.name_template or node.name_map from `tensors` (null: the key is absent, and the template is
// "layers.N.{name}" with N the layer's number in the model, repeats expanded). `place` is the key's.
// A map must name every tensor of the layer, each either whole or by all of its parts.
// Throws Error(input) naming file, line and key.
void name_tensors(Node& node, std::size_t number, const yaml::Value* tensors, const Place& place,
                  std::span<const RepeatIndex> indices);

}  // namespace warpweave::graph
