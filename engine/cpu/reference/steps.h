// The reference steps, one for each layer type. They are the definition of what a layer computes: written to
// be read, in float64 for precision fp64 and float32 otherwise. Unlike other steps they allocate while
// running.
#pragma once

#include <memory>

#include "cpu/step.h"

namespace warpweave::cpu::reference {

using Builder = std::unique_ptr<const Step> (*)(const graph::Layer&, const weights::LayerWeights&, Precision);

std::unique_ptr<const Step> axial_attention(const graph::Layer&, const weights::LayerWeights&, Precision);
std::unique_ptr<const Step> feed_forward(const graph::Layer&, const weights::LayerWeights&, Precision);
std::unique_ptr<const Step> norm(const graph::Layer&, const weights::LayerWeights&, Precision);
std::unique_ptr<const Step> linear(const graph::Layer&, const weights::LayerWeights&, Precision);
std::unique_ptr<const Step> patch_embed(const graph::Layer&, const weights::LayerWeights&, Precision);
std::unique_ptr<const Step> patch_unembed(const graph::Layer&, const weights::LayerWeights&, Precision);
std::unique_ptr<const Step> position_embedding(const graph::Layer&, const weights::LayerWeights&, Precision);

// Step<double> in precision fp64, Step<float> otherwise.
template <template <class> class StepOf, class LayerType>
std::unique_ptr<const Step> make(const graph::Layer& layer, const weights::LayerWeights& weights,
                                 Precision precision) {
  const auto& typed = dynamic_cast<const LayerType&>(layer);
  if (precision == Precision::fp64) return std::make_unique<StepOf<double>>(typed, weights, precision);
  return std::make_unique<StepOf<float>>(typed, weights, precision);
}

}  // namespace warpweave::cpu::reference
