// From a safetensors file and a graph to the tensors of every layer, by canonical name, in float32.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/layer.h"
#include "warpweave/tensor.h"

namespace warpweave::weights {

// One layer's tensors: canonical name -> float32 values in PyTorch's layout ([out, in] for matrices).
class LayerWeights {
 public:
  void set(std::string name, Tensor tensor) { tensors_[std::move(name)] = std::move(tensor); }
  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  // Null when the layer has no such tensor (an absent bias).
  const float* find(const std::string& name) const {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? nullptr : static_cast<const float*>(it->second.data());
  }
  const std::map<std::string, Tensor>& all() const noexcept { return tensors_; }

 private:
  std::map<std::string, Tensor> tensors_;
};

// Loads what every layer takes. q/k/v parts are concatenated; F64, F16 and BF16 are converted. One
// Error(input) lists all missing, unused (unless allowed) and wrongly shaped tensors with what was expected;
// another names tensors with non-finite values.
std::vector<LayerWeights> load_weights(const graph::Graph& graph, const std::string& file, bool allow_unused);

// Random weights for a graph, the same for one seed everywhere: matrices N(0, 1/fan_in), norm weights
// 1 + 0.1 N, biases 0.1 N. The generator is documented in random.cpp and repeated in tests/reference.
std::vector<LayerWeights> random_weights(const graph::Graph& graph, std::uint64_t seed);

}  // namespace warpweave::weights
