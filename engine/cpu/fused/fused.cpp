// The implementation "cpu_fused": which layers it takes, and the steps for them.
#include <typeinfo>

#include "cpu/fused/packing.h"
#include "cpu/fused/steps.h"
#include "warpweave/error.h"

namespace warpweave::cpu {
namespace fused {
namespace {

// The layer types, each with the maker of its step.
struct Maker {
  const std::type_info* type;
  StepPtr (*make)(const Kernels&, const graph::Layer&, const LayerWeights&, Rounding);
};
template <class Layer>
Maker maker() {
  return {&typeid(Layer), [](const Kernels& kernels, const graph::Layer& layer, const LayerWeights& weights,
                             Rounding rounding) {
            return make_step(kernels, static_cast<const Layer&>(layer), weights, rounding);
          }};
}

// Null where the type is not known here.
decltype(Maker::make) maker_for(const graph::Layer& layer) {
  for (const Maker& m : {maker<graph::AxialAttention>(), maker<graph::FeedForward>(),
                         maker<graph::NormLayer>(), maker<graph::Linear>(), maker<graph::PatchEmbed>(),
                         maker<graph::PatchUnembed>(), maker<graph::PositionEmbedding>()})
    if (*m.type == typeid(layer)) return m.make;
  return nullptr;
}

class Fused final : public CpuImplementation {
 public:
  std::string_view name() const noexcept override { return "cpu_fused"; }

  plan::Claim claim(std::span<const plan::LayerProblem> rest,
                    const plan::Conditions& conditions) const override {
    if (!select_kernels()) return plan::Claim::decline("this CPU has no AVX2");
    if (conditions.precision == Precision::fp64)
      return plan::Claim::decline("precision fp64: it computes in float32");
    const plan::LayerProblem& problem = rest.front();
    if (!maker_for(*problem.layer))
      return plan::Claim::decline("layer type " + std::string(problem.layer->type()));
    // Seconds on one core of a few years ago. Memory is left out: every implementation reads and writes the
    // grid.
    constexpr double kFlopsPerSecond = 1e11, kOverhead = 1e-7;
    return plan::Claim::accept(kOverhead + problem.layer->flops(problem.input) / kFlopsPerSecond);
  }

  std::unique_ptr<const Step> build(std::span<const graph::Layer* const> layers,
                                    std::span<const weights::LayerWeights> weights,
                                    const plan::Conditions& conditions) const override {
    const Kernels* kernels = select_kernels();
    const auto make = maker_for(*layers.front());
    if (!kernels || !make)
      throw Error(ErrorCode::internal, "cpu_fused was asked to build a layer that it declines");
    return make(*kernels, *layers.front(), weights.front(), rounding_of(conditions.precision));
  }
};

}  // namespace
}  // namespace fused

const CpuImplementation& fused_implementation() {
  static const fused::Fused implementation;
  return implementation;
}

}  // namespace warpweave::cpu
