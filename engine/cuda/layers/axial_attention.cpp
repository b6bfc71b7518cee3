// norm -> q, k, v of all heads -> RoPE -> attention -> output projection with bias and residual, slice by
// slice. Where the family has q, k, v and attention in one kernel, that runs instead unless there is a mask.
//
// In the workspace a token's q, k, v lie as [3][heads][head_pitch]; padded channels have zero weights, so
// they are zero in q, k, v and in the result.
#include "graph/layers/axial_attention.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cuda/layers/layers.h"
#include "cuda/rope.h"
#include "cuda/slices.h"

namespace warpweave::cuda {
namespace {

using graph::AxialAttention;
using graph::Axis;

struct Layout {  // elements
  std::int64_t token, head, inner, out;
  bool folded;  // AttentionShape::folded
  ProjectionShape qkv, output;

  Layout(const Family& family, const AxialAttention& layer, Precision precision)
      : token(family.token_pitch(layer.dim, precision)),
        head(family.head_pitch(layer.head_dim, precision)),
        inner(layer.heads * head),
        out(layer.dim),
        folded(family.folds_scale(layer.scale, precision)) {
    qkv = {.n = 3 * inner, .k = token};
    output = {.n = out, .k = inner, .residual = layer.residual};
  }

  // What q's weights are multiplied by, and the scale that is left to the kernels, who take a positive one.
  float factor_of_q(const AxialAttention& layer) const {
    return static_cast<float>(folded ? layer.scale * std::numbers::log2e : std::copysign(1.0, layer.scale));
  }
  float scale_left(const AxialAttention& layer) const {
    return folded ? std::numbers::ln2_v<float> : static_cast<float>(std::fabs(layer.scale));
  }
};

std::vector<ProjectionShape> projections_of(const Family& family, const graph::Layer& layer,
                                            Precision precision) {
  const Layout layout(family, static_cast<const AxialAttention&>(layer), precision);
  return {layout.qkv, layout.output};
}

AttentionShape attention_shape(const AxialAttention& layer, const Layout& layout, const graph::CellShape& input) {
  return {layer.heads, layout.head, layer.length(input), layer.causal, layout.folded};
}
QkvAttentionShape qkv_attention_shape(const AxialAttention& layer, const Layout& layout,
                                      const graph::CellShape& input) {
  return {attention_shape(layer, layout, input), layout.token,
          layer.axis == Axis::row ? input.rows : input.columns};
}

std::vector<KernelSpec> kernels_of(const Family& family, const plan::LayerProblem& problem,
                                   const plan::Conditions& conditions) {
  const auto& layer = static_cast<const AxialAttention&>(*problem.layer);
  const Precision precision = conditions.precision;
  const Layout layout(family, layer, precision);
  auto list = joined(
      {family.norm_kernels({layer.norm.kind, layer.dim, layout.token}, precision),
       family.projection_kernels(layout.qkv, precision),
       family.attention_kernels(attention_shape(layer, layout, problem.input), conditions),
       family.projection_kernels(layout.output, precision)});
  if (!layer.rope) {
    for (auto& spec : family.qkv_attention_kernels(qkv_attention_shape(layer, layout, problem.input), conditions))
      list.push_back(spec);
  }
  if (layer.rope) list.push_back(elementwise_kernel("rope", device_type(precision)));
  return list;
}

// Rows [part][head][head_dim] of the packed weight to [part][head][head_pitch].
std::vector<float> spread_heads(const float* weight, const AxialAttention& layer, const Layout& layout,
                                std::int64_t k, std::int64_t k_pitch) {
  std::vector<float> result;
  if (!weight) return result;
  result.assign(static_cast<std::size_t>(3 * layout.inner * k_pitch), 0.0f);
  for (std::int64_t row = 0; row < 3 * layer.inner(); ++row) {
    const std::int64_t to = row / layer.head_dim * layout.head + row % layer.head_dim;
    const float factor = row < layer.inner() ? layout.factor_of_q(layer) : 1.0f;
    for (std::int64_t i = 0; i < k; ++i) result[to * k_pitch + i] = factor * weight[row * k + i];
  }
  return result;
}

std::vector<float> spread_columns(const float* weight, const AxialAttention& layer, const Layout& layout) {
  std::vector<float> result(static_cast<std::size_t>(layer.dim * layout.inner), 0.0f);
  for (std::int64_t n = 0; n < layer.dim; ++n) {
    for (std::int64_t c = 0; c < layer.inner(); ++c) {
      result[n * layout.inner + c / layer.head_dim * layout.head + c % layer.head_dim] =
          weight[n * layer.inner() + c];
    }
  }
  return result;
}

std::span<const float> bias_span(const float* bias, std::int64_t n) {
  return bias ? std::span(bias, static_cast<std::size_t>(n)) : std::span<const float>();
}

class AttentionStep final : public Step {
 public:
  AttentionStep(const BuildContext& context, const AxialAttention& layer,
                const weights::LayerWeights& weights)
      : context_(context),
        layer_(layer),
        layout_(context.family, layer, context.precision),
        norm_(context, layer.norm, layer.dim, weights, layout_.token) {
    const auto qkv_weight =
        spread_heads(weights.find("qkv.weight"), layer, layout_, layer.dim, layout_.token);
    const auto qkv_bias = spread_heads(weights.find("qkv.bias"), layer, layout_, 1, 1);
    qkv_ = context.family.projection(layout_.qkv, qkv_weight, qkv_bias, context.precision, context.device);
    output_ = context.family.projection(
        layout_.output, spread_columns(weights.find("out.weight"), layer, layout_),
        bias_span(weights.find("out.bias"), layer.dim), context.precision, context.device);
  }

  bool in_place() const noexcept override { return true; }
  std::unique_ptr<const BoundStep> bind(const StepShape& shape) const override;

 private:
  class Bound;
  BuildContext context_;
  AxialAttention layer_;
  Layout layout_;
  NormPart norm_;
  std::unique_ptr<const Projection> qkv_, output_;
};

class AttentionStep::Bound final : public BoundStep {
 public:
  Bound(const AttentionStep& step, const StepShape& shape)
      : step_(step),
        length_(step.layer_.length(shape.input)),
        element_(static_cast<std::int64_t>(itemsize(storage_type(step.context_.precision)))),
        narrow_(std::max(step.layout_.token, step.layout_.inner) * element_),
        wide_(3 * step.layout_.inner * element_),
        scratch_(std::max(step.qkv_->scratch_bytes_per_token(), step.output_->scratch_bytes_per_token())),
        slices_(shape.batch, shape.input.rows, shape.input.columns,
                step.layer_.axis == Axis::row ? Cut::rows : Cut::columns, narrow_ + wide_ + scratch_, 3,
                shape.workspace_limit),
        qkv_(step.qkv_->bind(shape.input.cells())),
        output_(step.output_->bind(shape.input.cells())),
        attention_(step.context_.family.attention(attention_shape(step.layer_, step.layout_, shape.input),
                                                  step.context_.precision, step.context_.device)) {
    if (step.layer_.rope) {
      prepare_rope();
    } else {
      qkv_attention_ = step.context_.family.qkv_attention(
          qkv_attention_shape(step.layer_, step.layout_, shape.input), *step.qkv_, step.context_.precision,
          step.context_.device);
    }
  }

  std::size_t workspace_bytes() const noexcept override {
    const std::size_t tokens = slices_.largest();
    return aligned(tokens * narrow_) + aligned(tokens * wide_) + aligned(tokens * scratch_);
  }

  void enqueue(const StepRun& run) const override {
    const std::size_t largest = slices_.largest();
    std::byte* narrow = run.workspace;  // normalised tokens, then the heads' results
    std::byte* wide = narrow + aligned(largest * narrow_);
    std::byte* scratch = wide + aligned(largest * wide_);
    const AxialAttention& layer = step_.layer_;
    slices_.for_each([&](const Slice& s) {
      const std::int64_t tokens = s.tokens();
      step_.norm_.enqueue(run.stream, run.x, narrow, residual_copy(layer.residual, run), s.cells, tokens);
      const std::byte* heads = narrow;
      if (qkv_attention_ && !run.mask) {
        heads = wide;
        attend_together(run, s, narrow, wide);
      } else {
        attend(run, s, narrow, wide, scratch);
      }
      output_->enqueue(run.stream, {heads, layer.residual ? run.y : nullptr, run.y, s.cells, tokens, scratch});
    });
  }

 private:
  // Of normalised tokens in `narrow`, to where they are.
  void attend(const StepRun& run, const Slice& s, std::byte* narrow, std::byte* qkv, std::byte* scratch) const {
    const AxialAttention& layer = step_.layer_;
    const bool row = layer.axis == Axis::row;
    const std::int64_t tokens = s.tokens();
    qkv_->enqueue(run.stream, {narrow, nullptr, qkv, dense(tokens), tokens, scratch});
    if (layer.rope) {
      rope_.launch(
          run.stream, {.blocks = loop_blocks(tokens * layer.heads * layer.rope->dims, 256), .threads = 256},
          kernels::RopeParams{qkv, reinterpret_cast<const float*>(table_.data()), tokens, layer.heads,
                              step_.layout_.head, layer.rope->dims, row ? 1 : s.columns, length_,
                              layer.rope->style == graph::Rope::Style::interleaved});
    }
    kernels::AttentionParams p{};
    p.qkv = qkv;
    p.o = narrow;
    p.mask = run.mask ? run.mask + s.cells.first : nullptr;
    p.tokens = sequences(row, s, s.columns);
    p.mask_cells = sequences(row, s, s.cells.pitch);
    p.sequences = tokens / length_;
    p.length = length_;
    p.heads = layer.heads;
    p.scale = step_.layout_.scale_left(layer);
    attention_->enqueue(run.stream, p);
  }

  void attend_together(const StepRun& run, const Slice& s, const std::byte* x, std::byte* o) const {
    const AxialAttention& layer = step_.layer_;
    qkv_attention_->enqueue(run.stream, {.x = x,
                                         .o = o,
                                         .tokens = sequences(layer.axis == Axis::row, s, s.columns),
                                         .sequences = s.tokens() / length_,
                                         .scale = step_.layout_.scale_left(layer)});
  }

  // The sequences of a slice over a grid whose rows lie `pitch` cells apart.
  static kernels::Sequences sequences(bool row, const Slice& s, std::int64_t pitch) {
    return row ? kernels::Sequences{s.rows, s.rows * pitch, pitch, 1}
               : kernels::Sequences{s.columns, s.rows * pitch, 1, pitch};
  }

  void prepare_rope() {
    const graph::Rope& rope = *step_.layer_.rope;
    table_ = upload(rotation_table(rope.theta, rope.dims, rope.dims / 2, length_));
    rope_ = step_.context_.device.kernels().get(
        elementwise_kernel("rope", device_type(step_.context_.precision)));
  }

  const AttentionStep& step_;
  std::int64_t length_, element_;
  std::int64_t narrow_, wide_, scratch_;  // bytes per token
  Slices slices_;
  std::unique_ptr<const BoundProjection> qkv_, output_;
  std::unique_ptr<const AttentionOperation> attention_;
  std::unique_ptr<const QkvAttentionOperation> qkv_attention_;  // null where there is none
  Kernel rope_;
  DeviceBuffer table_;
};

std::unique_ptr<const BoundStep> AttentionStep::bind(const StepShape& shape) const {
  return std::make_unique<Bound>(*this, shape);
}

}  // namespace

const LayerBuilder kAxialAttention = {
    "axial_attention", projections_of, kernels_of,
    [](const BuildContext& context, const graph::Layer& layer,
       const weights::LayerWeights& weights) -> std::unique_ptr<const Step> {
      return std::make_unique<AttentionStep>(context, static_cast<const AxialAttention&>(layer), weights);
    }};

}  // namespace warpweave::cuda
