// What can run a layer: each implementation claims layers, or declines in words.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "graph/layer.h"
#include "warpweave/types.h"

namespace warpweave::weights {
class LayerWeights;
}

namespace warpweave::plan {

// A layer with the grid that reaches it. There is no batch in here: a plan must not depend on it.
struct LayerProblem {
  const graph::Layer* layer = nullptr;
  graph::CellShape input, output;
  const weights::LayerWeights* weights = nullptr;  // null where there are none (kernels compiled ahead)
};

// Everything else that a choice may depend on.
struct Conditions {
  Precision precision = Precision::fp32;
  int compute_capability = 0;                // of the GPU, 90 for 9.0; 0 on the CPU
  std::int64_t shared_memory_per_block = 0;  // of the GPU, opt-in limit in bytes
};

struct Claim {
  std::string declined;  // the reason, in words; empty when claimed
  int layers = 1;        // how many consecutive layers, from the first on, are taken together
  double cost = 0;       // estimated time for one sample; only compared with other costs of the same device

  static Claim decline(std::string reason) { return {std::move(reason), 0, 0}; }
  static Claim accept(double cost, int layers = 1) { return {{}, layers, cost}; }
  explicit operator bool() const noexcept { return declined.empty(); }
};

class Implementation {
 public:
  virtual ~Implementation() = default;
  virtual std::string_view name() const noexcept = 0;  // unique on its device: "reference", "cpu_fused"
  // For the layers from the first of `rest` on (at least one).
  virtual Claim claim(std::span<const LayerProblem> rest, const Conditions& conditions) const = 0;
};

}  // namespace warpweave::plan
