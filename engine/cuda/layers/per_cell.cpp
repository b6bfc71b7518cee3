// Layers that a single operation runs: norm and position embedding.
#include "cuda/layers/layers.h"
#include "graph/layers/norm.h"
#include "graph/layers/position_embedding.h"

namespace warpweave::cuda {
namespace {

using graph::NormLayer;
using graph::PositionEmbedding;

std::vector<ProjectionShape> no_projections(const Family&, const graph::Layer&, Precision) { return {}; }

std::vector<KernelSpec> norm_kernels(const Family& family, const plan::LayerProblem& problem,
                                     const plan::Conditions& conditions) {
  const auto& layer = static_cast<const NormLayer&>(*problem.layer);
  return family.norm_kernels({layer.norm.kind, layer.dim, layer.dim, false}, conditions.precision);
}

class NormStep final : public Step {
 public:
  NormStep(const BuildContext& context, const NormLayer& layer, const weights::LayerWeights& weights)
      : norm_(context, layer.norm, layer.dim, weights, layer.dim, false) {}
  bool in_place() const noexcept override { return true; }
  std::unique_ptr<const BoundStep> bind(const StepShape& shape) const override {
    return std::make_unique<Bound>(norm_, shape.batch * shape.input.cells());
  }

 private:
  struct Bound final : BoundStep {
    Bound(const NormPart& part, std::int64_t cells) : norm(part), tokens(cells) {}
    std::size_t workspace_bytes() const noexcept override { return 0; }
    void enqueue(const StepRun& run) const override {
      norm.enqueue(run.stream, run.x, run.y, nullptr, dense(tokens), tokens);
    }
    const NormPart& norm;
    std::int64_t tokens;
  };
  NormPart norm_;
};

std::vector<KernelSpec> position_kernels(const Family&, const plan::LayerProblem&,
                                         const plan::Conditions& conditions) {
  return {elementwise_kernel("add_position", device_type(conditions.precision))};
}

class PositionStep final : public Step {
 public:
  PositionStep(const BuildContext& context, const PositionEmbedding& layer,
               const weights::LayerWeights& weights)
      : dim_(layer.dim),
        rows_(upload({weights.find("rows"), static_cast<std::size_t>(layer.rows * layer.dim)})),
        columns_(upload({weights.find("columns"), static_cast<std::size_t>(layer.columns * layer.dim)})),
        kernel_(context.device.kernels().get(
            elementwise_kernel("add_position", device_type(context.precision)))) {}
  bool in_place() const noexcept override { return true; }
  std::unique_ptr<const BoundStep> bind(const StepShape& shape) const override {
    return std::make_unique<Bound>(*this, shape);
  }

 private:
  struct Bound final : BoundStep {
    Bound(const PositionStep& owner, const StepShape& wanted) : step(owner), shape(wanted) {}
    std::size_t workspace_bytes() const noexcept override { return 0; }
    void enqueue(const StepRun& run) const override {
      const std::int64_t count = shape.batch * shape.input.cells() * step.dim_;
      step.kernel_.launch(
          run.stream, {.blocks = loop_blocks(count, 256), .threads = 256},
          kernels::PositionParams{run.x, run.y, reinterpret_cast<const float*>(step.rows_.data()),
                                  reinterpret_cast<const float*>(step.columns_.data()), count,
                                  shape.input.rows, shape.input.columns, step.dim_});
    }
    const PositionStep& step;
    StepShape shape;
  };
  std::int64_t dim_;
  DeviceBuffer rows_, columns_;
  Kernel kernel_;
};

}  // namespace

const LayerBuilder kNorm = {"norm", no_projections, norm_kernels,
                            [](const BuildContext& context, const graph::Layer& layer,
                               const weights::LayerWeights& weights) -> std::unique_ptr<const Step> {
                              return std::make_unique<NormStep>(context, static_cast<const NormLayer&>(layer),
                                                                weights);
                            }};

const LayerBuilder kPositionEmbedding = {
    "position_embedding", no_projections, position_kernels,
    [](const BuildContext& context, const graph::Layer& layer,
       const weights::LayerWeights& weights) -> std::unique_ptr<const Step> {
      return std::make_unique<PositionStep>(context, static_cast<const PositionEmbedding&>(layer), weights);
    }};

}  // namespace warpweave::cuda
