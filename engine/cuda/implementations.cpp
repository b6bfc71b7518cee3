// The implementations of the GPU, and how a family's operations make one.
#include <algorithm>

#include "cuda/composed/family.h"
#include "cuda/layers/layers.h"
#include "cuda/long/implementation.h"
#include "cuda/reference/family.h"
#include "cuda/resident/implementation.h"
#include "cuda/split/implementation.h"
#include "cuda/step.h"
#include "warpweave/error.h"

namespace warpweave::cuda {
namespace {

const LayerBuilder* builder_for(const graph::Layer& layer) {
  const auto builders = layer_builders();
  const auto it =
      std::find_if(builders.begin(), builders.end(), [&](const auto& b) { return b.type == layer.type(); });
  return it == builders.end() ? nullptr : &*it;
}

class FamilyImplementation final : public CudaImplementation {
 public:
  explicit FamilyImplementation(std::unique_ptr<const Family> family) : family_(std::move(family)) {}

  std::string_view name() const noexcept override { return family_->name(); }

  plan::Claim claim(std::span<const plan::LayerProblem> rest,
                    const plan::Conditions& conditions) const override {
    if (!builder_for(*rest[0].layer)) {
      return plan::Claim::decline("it does not know layers of type " + std::string(rest[0].layer->type()));
    }
    return family_->claim(rest[0], conditions);
  }

  std::vector<KernelSpec> kernels(std::span<const plan::LayerProblem> layers,
                                  const plan::Conditions& conditions) const override {
    return builder_for(*layers[0].layer)->kernels(*family_, layers[0], conditions);
  }

  bool needs_blas(std::span<const plan::LayerProblem> layers, Precision precision) const override {
    const auto projections =
        builder_for(*layers[0].layer)->projections(*family_, *layers[0].layer, precision);
    return std::any_of(projections.begin(), projections.end(),
                       [&](const ProjectionShape& shape) { return family_->needs_blas(shape, precision); });
  }

  std::unique_ptr<const Step> build(std::span<const graph::Layer* const> layers,
                                    std::span<const weights::LayerWeights> weights, Precision precision,
                                    const GpuDevice& device) const override {
    return builder_for(*layers[0])->build({*family_, precision, device}, *layers[0], weights[0]);
  }

 private:
  std::unique_ptr<const Family> family_;
};

}  // namespace

std::vector<std::unique_ptr<const CudaImplementation>> make_implementations(const std::string& blas_missing) {
  std::vector<std::unique_ptr<const CudaImplementation>> list;
  list.push_back(resident::make_resident());
  list.push_back(split::make_split());
  list.push_back(long_sequences::make_long());
  list.push_back(std::make_unique<FamilyImplementation>(make_composed_family(blas_missing)));
  list.push_back(std::make_unique<FamilyImplementation>(make_reference_family()));
  return list;
}

}  // namespace warpweave::cuda
