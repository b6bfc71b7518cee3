// norm -> up projection -> activation -> down projection with bias and residual, slice by slice.
#include "graph/layers/feed_forward.h"

#include "cuda/layers/layers.h"
#include "cuda/slices.h"

namespace warpweave::cuda {
namespace {

using graph::FeedForward;

struct Layout {  // elements
  std::int64_t token, hidden;
  ProjectionShape up, down;

  Layout(const Family& family, const FeedForward& layer, Precision precision)
      : token(family.token_pitch(layer.dim, precision)), hidden(family.token_pitch(layer.hidden, precision)) {
    up = {.n = hidden, .k = token, .activation = layer.activation, .activated = true, .own_kernel = true};
    down = {.n = layer.dim, .k = hidden, .residual = layer.residual, .own_kernel = true};
  }
};

std::vector<ProjectionShape> projections_of(const Family& family, const graph::Layer& layer,
                                            Precision precision) {
  const Layout layout(family, static_cast<const FeedForward&>(layer), precision);
  return {layout.up, layout.down};
}

std::vector<KernelSpec> kernels_of(const Family& family, const plan::LayerProblem& problem,
                                   const plan::Conditions& conditions) {
  const auto& layer = static_cast<const FeedForward&>(*problem.layer);
  const Layout layout(family, layer, conditions.precision);
  return joined({family.norm_kernels({layer.norm.kind, layer.dim, layout.token}, conditions.precision),
                 family.projection_kernels(layout.up, conditions.precision),
                 family.projection_kernels(layout.down, conditions.precision)});
}

class FeedForwardStep final : public Step {
 public:
  FeedForwardStep(const BuildContext& context, const FeedForward& layer, const weights::LayerWeights& weights)
      : context_(context),
        layer_(layer),
        layout_(context.family, layer, context.precision),
        norm_(context, layer.norm, layer.dim, weights, layout_.token) {
    const auto project = [&](const ProjectionShape& shape, const char* weight, const char* bias,
                             std::int64_t n, std::int64_t k) {
      return context.family.projection(shape, padded(weights.find(weight), n, k, shape.n, shape.k),
                                       padded(weights.find(bias), n, 1, shape.n, 1), context.precision,
                                       context.device);
    };
    up_ = project(layout_.up, "up.weight", "up.bias", layer.hidden, layer.dim);
    down_ = project(layout_.down, "down.weight", "down.bias", layer.dim, layer.hidden);
  }

  bool in_place() const noexcept override { return true; }
  std::unique_ptr<const BoundStep> bind(const StepShape& shape) const override;

 private:
  class Bound;
  BuildContext context_;
  FeedForward layer_;
  Layout layout_;
  NormPart norm_;
  std::unique_ptr<const Projection> up_, down_;
};

class FeedForwardStep::Bound final : public BoundStep {
 public:
  Bound(const FeedForwardStep& step, const StepShape& shape)
      : step_(step),
        element_(static_cast<std::int64_t>(itemsize(storage_type(step.context_.precision)))),
        token_(step.layout_.token * element_),
        hidden_(step.layout_.hidden * element_),
        scratch_(std::max(step.up_->scratch_bytes_per_token(), step.down_->scratch_bytes_per_token())),
        slices_(1, shape.batch * shape.input.cells(), 1, Cut::rows, token_ + hidden_ + scratch_, 3,
                shape.workspace_limit),
        up_(step.up_->bind(shape.input.cells())),
        down_(step.down_->bind(shape.input.cells())) {}

  std::size_t workspace_bytes() const noexcept override {
    const std::size_t tokens = slices_.largest();
    return aligned(tokens * token_) + aligned(tokens * hidden_) + aligned(tokens * scratch_);
  }

  void enqueue(const StepRun& run) const override {
    const std::size_t largest = slices_.largest();
    std::byte* token = run.workspace;
    std::byte* hidden = token + aligned(largest * token_);
    std::byte* scratch = hidden + aligned(largest * hidden_);
    slices_.for_each([&](const Slice& s) {
      const std::int64_t tokens = s.tokens();
      const kernels::Cells cells{s.cells.first, tokens, tokens};  // a slice is one run of cells
      step_.norm_.enqueue(run.stream, run.x, token, residual_copy(step_.layer_.residual, run), cells, tokens);
      up_->enqueue(run.stream, {token, nullptr, hidden, dense(tokens), tokens, scratch});
      down_->enqueue(run.stream,
                     {hidden, step_.layer_.residual ? run.y : nullptr, run.y, cells, tokens, scratch});
    });
  }

 private:
  const FeedForwardStep& step_;
  std::int64_t element_, token_, hidden_, scratch_;  // bytes, the last three per token
  Slices slices_;
  std::unique_ptr<const BoundProjection> up_, down_;
};

std::unique_ptr<const BoundStep> FeedForwardStep::bind(const StepShape& shape) const {
  return std::make_unique<Bound>(*this, shape);
}

}  // namespace

const LayerBuilder kFeedForward = {"feed_forward", projections_of, kernels_of,
                                   [](const BuildContext& context, const graph::Layer& layer,
                                      const weights::LayerWeights& weights) -> std::unique_ptr<const Step> {
                                     return std::make_unique<FeedForwardStep>(
                                         context, static_cast<const FeedForward&>(layer), weights);
                                   }};

}  // namespace warpweave::cuda
