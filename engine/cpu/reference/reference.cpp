// The implementation that declines nothing.
#include <array>
#include <string>
#include <utility>

#include "cpu/reference/steps.h"
#include "warpweave/error.h"

namespace warpweave::cpu {
namespace {

constexpr std::array<std::pair<std::string_view, reference::Builder>, 7> kBuilders{{
    {"axial_attention", reference::axial_attention},
    {"feed_forward", reference::feed_forward},
    {"norm", reference::norm},
    {"linear", reference::linear},
    {"patch_embed", reference::patch_embed},
    {"patch_unembed", reference::patch_unembed},
    {"position_embedding", reference::position_embedding},
}};

reference::Builder find(std::string_view type) {
  for (const auto& [name, builder] : kBuilders)
    if (name == type) return builder;
  return nullptr;
}

class Reference final : public CpuImplementation {
 public:
  std::string_view name() const noexcept override { return "reference"; }

  plan::Claim claim(std::span<const plan::LayerProblem> rest, const plan::Conditions&) const override {
    const graph::Layer& layer = *rest[0].layer;
    if (!find(layer.type()))
      return plan::Claim::decline("no reference is written for " + std::string(layer.type()));
    constexpr double kFlopsPerSecond = 4e9, kBytesPerSecond = 1e9;
    const double bytes = 4.0 * static_cast<double>(rest[0].input.cells() * rest[0].input.channels +
                                                   rest[0].output.cells() * rest[0].output.channels);
    return plan::Claim::accept(1e-6 + layer.flops(rest[0].input) / kFlopsPerSecond + bytes / kBytesPerSecond);
  }

  std::unique_ptr<const Step> build(std::span<const graph::Layer* const> layers,
                                    std::span<const weights::LayerWeights> weights,
                                    const plan::Conditions& conditions) const override {
    return find(layers[0]->type())(*layers[0], weights[0], conditions.precision);
  }
};

}  // namespace

const CpuImplementation& reference_implementation() {
  static const Reference reference;
  return reference;
}

}  // namespace warpweave::cpu
