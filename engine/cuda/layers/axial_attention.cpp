// norm -> q, k, v of all heads -> RoPE -> attention -> output projection with bias and residual, slice by
// slice. Where the family has norm and q, k, v, or these and attention, as one operation, that runs instead;
// the latter without RoPE, without a mask, and where the family finds it worth while.
//
// In the workspace a token's q, k, v lie as [3][heads][head_pitch]; padded channels have zero weights, so
// they are zero in q, k, v and in the result.
#include "graph/layers/axial_attention.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

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

AttentionShape attention_shape(const AxialAttention& layer, const Layout& layout,
                               const graph::CellShape& input) {
  return {layer.heads, layout.head, layer.length(input), layer.causal, layout.folded};
}
std::int64_t neighbours(const AxialAttention& layer, const graph::CellShape& input) {
  return layer.axis == Axis::row ? input.rows : input.columns;
}

// The layer for Family::wide_layer(), where the family takes it.
std::optional<WideShape> wide_shape(const Family& family, const AxialAttention& layer, const Layout& layout,
                                    const plan::Conditions& conditions) {
  const WideShape shape{layer.heads, layout.head, layer.dim, layer.norm.kind};
  return family.takes_wide_layer(shape, conditions) ? std::optional(shape) : std::nullopt;
}

std::vector<KernelSpec> kernels_of(const Family& family, const plan::LayerProblem& problem,
                                   const plan::Conditions& conditions) {
  const auto& layer = static_cast<const AxialAttention&>(*problem.layer);
  const Precision precision = conditions.precision;
  const Layout layout(family, layer, precision);
  const AttentionShape attention = attention_shape(layer, layout, problem.input);
  auto list = joined(
      {family.attention_kernels(attention, conditions), family.projection_kernels(layout.output, precision)});
  const auto add = [&list](const std::vector<KernelSpec>& more) {
    list.insert(list.end(), more.begin(), more.end());
  };
  const auto wide = wide_shape(family, layer, layout, conditions);
  if (wide) {
    add(family.wide_layer_kernels(*wide, layer.rope ? nullptr : &attention, neighbours(layer, problem.input),
                                  precision));
  } else {
    add(family.norm_kernels({layer.norm.kind, layer.dim, layout.token}, precision));
    add(family.projection_kernels(layout.qkv, precision));
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
      : context_(context), layer_(layer), layout_(context.family, layer, context.precision) {
    const auto qkv_weight =
        spread_heads(weights.find("qkv.weight"), layer, layout_, layer.dim, layout_.token);
    const auto qkv_bias = spread_heads(weights.find("qkv.bias"), layer, layout_, 1, 1);
    const auto wide =
        wide_shape(context.family, layer, layout_, context.device.conditions(context.precision));
    if (wide) {
      wide_ = context.family.wide_layer(*wide,
                                        {.qkv = qkv_weight,
                                         .qkv_bias = qkv_bias,
                                         .norm_weight = weights.find("norm.weight"),
                                         .norm_bias = weights.find("norm.bias"),
                                         .eps = static_cast<float>(layer.norm.eps)},
                                        context.precision, context.device);
    } else {
      norm_.emplace(context, layer.norm, layer.dim, weights, layout_.token);
      qkv_ = context.family.projection(layout_.qkv, qkv_weight, qkv_bias, context.precision, context.device);
    }
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
  // norm_ and qkv_, or wide_.
  std::optional<NormPart> norm_;
  std::unique_ptr<const WideLayer> wide_;
  std::unique_ptr<const Projection> qkv_, output_;
};

class AttentionStep::Bound final : public BoundStep {
 public:
  Bound(const AttentionStep& step, const StepShape& shape)
      : step_(step),
        length_(step.layer_.length(shape.input)),
        element_(static_cast<std::int64_t>(itemsize(storage_type(step.context_.precision)))),
        narrow_((step.wide_ ? step.layout_.inner : std::max(step.layout_.token, step.layout_.inner)) *
                element_),
        qkv_bytes_(3 * step.layout_.inner * element_),
        scratch_(
            std::max(step.wide_ ? step.wide_->gain_bytes_per_token() : step.qkv_->scratch_bytes_per_token(),
                     step.output_->scratch_bytes_per_token())),
        grid_bytes_(shape.batch * shape.input.cells() * step.layer_.dim * element_),
        slices_(shape.batch, shape.input.rows, shape.input.columns,
                step.layer_.axis == Axis::row ? Cut::rows : Cut::columns, narrow_ + qkv_bytes_ + scratch_, 3,
                shape.workspace_limit),
        qkv_(step.wide_ ? nullptr : step.qkv_->bind(shape.input.cells())),
        output_(step.output_->bind(shape.input.cells())),
        attention_(step.context_.family.attention(attention_shape(step.layer_, step.layout_, shape.input),
                                                  step.context_.precision, step.context_.device)) {
    if (step.layer_.rope) prepare_rope();
    if (!step.wide_) return;
    wide_qkv_ = step.wide_->store();
    if (!step.layer_.rope) {
      wide_attention_ = step.wide_->attention(attention_shape(step.layer_, step.layout_, shape.input),
                                              neighbours(step.layer_, shape.input));
    }
  }

  std::size_t workspace_bytes() const noexcept override {
    const std::size_t tokens = slices_.largest();
    return aligned(tokens * narrow_) + aligned(tokens * qkv_bytes_) + aligned(tokens * scratch_);
  }

  void enqueue(const StepRun& run) const override {
    const std::size_t largest = slices_.largest();
    std::byte* narrow = run.workspace;  // normalised tokens (not of wide layers), then the heads' results
    std::byte* qkv = narrow + aligned(largest * narrow_);
    std::byte* scratch = qkv + aligned(largest * qkv_bytes_);
    const bool residual = step_.layer_.residual;
    const WideOperation* together = run.mask ? nullptr : wide_attention_.get();
    const WideOperation* wide = together ? together : wide_qkv_.get();
    void* copy = residual_copy(residual, run);
    if (copy && wide && !wide->copies()) {
      check(
          cudaMemcpyAsync(copy, run.x, static_cast<std::size_t>(grid_bytes_), cudaMemcpyDefault, run.stream),
          "copying a grid");
      copy = nullptr;
    }
    slices_.for_each([&](const Slice& s) {
      const std::int64_t tokens = s.tokens();
      if (wide) {
        wide->enqueue(run.stream, wide_run(run, s, together ? narrow : qkv, scratch, copy));
      } else {
        step_.norm_->enqueue(run.stream, run.x, narrow, copy, s.cells, tokens);
        qkv_->enqueue(run.stream, {narrow, nullptr, qkv, dense(tokens), tokens, scratch});
      }
      if (!together) attend(run, s, qkv, narrow);
      output_->enqueue(run.stream, {narrow, residual ? run.y : nullptr, run.y, s.cells, tokens, scratch});
    });
  }

 private:
  bool along_rows() const noexcept { return step_.layer_.axis == Axis::row; }

  WideRun wide_run(const StepRun& run, const Slice& s, void* out, void* gains, void* copy) const {
    return {.x = run.x,
            .cells = s.cells,
            .tokens = s.tokens(),
            .out = out,
            .gains = gains,
            .copy = copy,
            .grid_sequences = sequences(along_rows(), s, s.cells.pitch),
            .token_sequences = sequences(along_rows(), s, s.columns),
            .sequences = s.tokens() / length_,
            .length = length_,
            .scale = step_.layout_.scale_left(step_.layer_)};
  }

  void attend(const StepRun& run, const Slice& s, std::byte* qkv, std::byte* heads) const {
    const AxialAttention& layer = step_.layer_;
    const std::int64_t tokens = s.tokens();
    if (layer.rope) {
      rope_.launch(
          run.stream, {.blocks = loop_blocks(tokens * layer.heads * layer.rope->dims, 256), .threads = 256},
          kernels::RopeParams{qkv, reinterpret_cast<const float*>(table_.data()), tokens, layer.heads,
                              step_.layout_.head, layer.rope->dims, along_rows() ? 1 : s.columns, length_,
                              layer.rope->style == graph::Rope::Style::interleaved});
    }
    kernels::AttentionParams p{};
    p.qkv = qkv;
    p.o = heads;
    p.mask = run.mask ? run.mask + s.cells.first : nullptr;
    p.tokens = sequences(along_rows(), s, s.columns);
    p.mask_cells = sequences(along_rows(), s, s.cells.pitch);
    p.sequences = tokens / length_;
    p.length = length_;
    p.heads = layer.heads;
    p.scale = step_.layout_.scale_left(layer);
    attention_->enqueue(run.stream, p);
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
  std::int64_t narrow_, qkv_bytes_, scratch_;  // bytes per token
  std::int64_t grid_bytes_;
  Slices slices_;
  std::unique_ptr<const BoundProjection> qkv_, output_;
  std::unique_ptr<const AttentionOperation> attention_;
  std::unique_ptr<const WideOperation> wide_qkv_, wide_attention_;  // null where they are not used
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
