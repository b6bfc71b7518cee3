#include "cuda/long/implementation.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "cuda/composed/family.h"
#include "cuda/layers/layers.h"
#include "cuda/long/attention_output.h"
#include "cuda/long/layer.h"
#include "cuda/long/whole_layer.h"
#include "cuda/rope.h"
#include "cuda/slices.h"

namespace warpweave::cuda::long_sequences {
namespace {

using graph::AxialAttention;
using graph::Axis;

constexpr std::int64_t kMeasuredCells = 256 * 384;  // the smallest sample that was measured
constexpr int kMeasuredMultiprocessors = 132;

AttentionShape attention_shape(const AxialAttention& layer, std::int64_t head_pitch, std::int64_t length,
                               Precision precision) {
  return {layer.heads, head_pitch, length, layer.causal, folds_scale(layer, precision)};
}

// `family` supplies the attention and outlives the step.
class LongStep final : public Step {
 public:
  LongStep(const Family& family, const AxialAttention& layer, const weights::LayerWeights& weights,
           Precision precision, const GpuDevice& device)
      : family_(family), layer_(layer), precision_(precision), device_(device) {
    const LayerShapes shapes = this->shapes(false);
    const layout::ProjectPlan qkv = plan_of(shapes.qkv), output = plan_of(shapes.output);
    const FoldedWeights folded = fold(layer, shapes, weights, precision);
    qkv_weights_ = upload_bytes(pack_projection(qkv, folded.qkv, folded.qkv_bias, precision), "weights");
    output_weights_ =
        upload_bytes(pack_projection(output, folded.output, folded.output_bias, precision), "weights");
    for (const bool masked : {false, true})
      qkv_[masked] = TokenProjection(this->shapes(masked).qkv, qkv, precision, device);
    output_ = TokenProjection(shapes.output, output, precision, device);
    if (attention_can_project(layer.heads, shapes.head_pitch))
      attention_output_.emplace(layer.heads, shapes.head_pitch, folded.output, folded.output_bias, precision);
    if (const auto plan = whole_layer_plan(layer, shapes.head_pitch, device.conditions(precision)))
      whole_weights_ = upload_bytes(pack_whole_layer(*plan, folded, precision), "weights");
  }

  bool in_place() const noexcept override { return true; }
  std::unique_ptr<const BoundStep> bind(const StepShape& shape) const override;

 private:
  class Bound;
  LayerShapes shapes(bool masked) const {
    return shapes_of(layer_, family_.head_pitch(layer_.head_dim, precision_), masked);
  }

  const Family& family_;
  AxialAttention layer_;
  Precision precision_;
  const GpuDevice& device_;
  TokenProjection qkv_[2], output_;  // without and with a mask
  DeviceBuffer qkv_weights_, output_weights_, whole_weights_;
  std::optional<AttentionOutputWeights> attention_output_;
};

class LongStep::Bound final : public BoundStep {
 public:
  Bound(const LongStep& step, const StepShape& shape)
      : step_(step),
        shapes_(step.shapes(false)),
        length_(step.layer_.length(shape.input)),
        heads_bytes_(2 * shapes_.inner),
        qkv_bytes_(6 * shapes_.inner),
        slices_(shape.batch, shape.input.rows, shape.input.columns,
                step.layer_.axis == Axis::row ? Cut::rows : Cut::columns, heads_bytes_ + qkv_bytes_, 2,
                shape.workspace_limit) {
    const AttentionShape attention =
        attention_shape(step.layer_, shapes_.head_pitch, length_, step.precision_);
    if (const auto plan = attention_output_plan(attention, step.device_.conditions(step.precision_))) {
      with_output_.emplace(*plan, step.layer_.causal, step.precision_, step.device_);
      attention_ = make_any_attention(attention, step.precision_, step.device_);
    } else {
      attention_ = step.family_.attention(attention, step.precision_, step.device_);
    }
    const auto any =
        whole_layer_plan(step.layer_, shapes_.head_pitch, step.device_.conditions(step.precision_));
    const auto whole = any ? whole_layer_plan_for(*any, length_) : std::nullopt;
    const bool row = step.layer_.axis == Axis::row;
    if (whole &&
        whole_layer_fills(row ? shape.input.rows : shape.input.columns, step.device_.multiprocessors())) {
      all_ = {
          shape.batch, shape.input.rows, shape.input.columns, {0, shape.input.columns, shape.input.columns}};
      whole_.emplace(*whole, step.layer_, step.precision_, step.device_);
      blocks_ = whole_->blocks(all_.tokens() / length_, shape.workspace_limit > 0 ? steps_bytes() : 0);
    }
    if (const auto& rope = step.layer_.rope)
      rotation_ = upload(rotation_table(rope->theta, rope->dims, shapes_.head_pitch / 2, length_));
  }

  // For a mask the layer runs in steps, always.
  std::size_t workspace_bytes() const noexcept override {
    return std::max<std::size_t>(steps_bytes(), whole_ ? whole_->workspace_bytes(blocks_) : 0);
  }

  void enqueue(const StepRun& run) const override {
    const AxialAttention& layer = step_.layer_;
    const bool row = layer.axis == Axis::row, masked = run.mask != nullptr;
    if (whole_ && !masked) return enqueue_whole(run);
    std::byte* heads = run.workspace;  // the heads' results
    std::byte* qkv = heads + aligned(slices_.largest() * heads_bytes_);
    slices_.for_each([&](const Slice& s) {
      kernels::ProjectParams p{};
      p.x = run.x, p.y = qkv, p.mask = run.mask;
      p.weights = step_.qkv_weights_.data(), p.rotation = reinterpret_cast<const float*>(rotation_.data());
      p.cells = s.cells, p.tokens = static_cast<int>(s.tokens());
      p.eps = static_cast<float>(layer.norm.eps);
      p.position_divisor = row ? 1 : static_cast<int>(s.columns), p.length = static_cast<int>(length_);
      step_.qkv_[masked].enqueue(run.stream, p);

      kernels::AttentionParams a{};
      a.qkv = qkv, a.o = heads, a.mask = masked ? run.mask + s.cells.first : nullptr;
      a.tokens = sequences(row, s, s.columns), a.mask_cells = sequences(row, s, s.cells.pitch);
      a.sequences = s.tokens() / length_, a.length = length_, a.heads = layer.heads;
      a.scale = folds_scale(layer, step_.precision_) ? std::numbers::ln2_v<float>
                                                     : static_cast<float>(std::abs(layer.scale));
      if (with_output_ && !masked) {
        const std::int64_t first = s.cells.first * layer.dim * 2;  // bytes
        const void* residual = layer.residual ? static_cast<const std::byte*>(run.x) + first : nullptr;
        with_output_->enqueue(
            run.stream, a, step_.attention_output_->params(residual, static_cast<std::byte*>(run.y) + first));
        return;
      }
      attention_->enqueue(run.stream, a);

      p.x = heads, p.y = run.y, p.residual = run.x, p.weights = step_.output_weights_.data();
      step_.output_.enqueue(run.stream, p);
    });
  }

 private:
  std::size_t steps_bytes() const noexcept {
    const std::size_t tokens = slices_.largest();
    return aligned(tokens * heads_bytes_) + aligned(tokens * qkv_bytes_);
  }

  void enqueue_whole(const StepRun& run) const {
    const AxialAttention& layer = step_.layer_;
    kernels::long_sequences::WholeLayerParams p{};
    p.x = run.x, p.weights = step_.whole_weights_.data(), p.parked = reinterpret_cast<char*>(run.workspace);
    p.output = step_.attention_output_->params(layer.residual ? run.x : nullptr, run.y);
    p.cells = sequences(layer.axis == Axis::row, all_, all_.columns);
    p.sequences = static_cast<int>(all_.tokens() / length_), p.length = static_cast<int>(length_);
    p.eps = static_cast<float>(layer.norm.eps);
    whole_->enqueue(run.stream, blocks_, p);
  }

  // The sequences of a slice over a grid whose rows lie `pitch` cells apart.
  static kernels::Sequences sequences(bool row, const Slice& s, std::int64_t pitch) {
    return row ? kernels::Sequences{s.rows, s.rows * pitch, pitch, 1}
               : kernels::Sequences{s.columns, s.rows * pitch, 1, pitch};
  }

  const LongStep& step_;
  LayerShapes shapes_;
  std::int64_t length_;
  std::int64_t heads_bytes_, qkv_bytes_;  // of a token
  Slices slices_;
  std::unique_ptr<const AttentionOperation> attention_;
  std::optional<LongAttention> with_output_;  // ends with the output projection; attention_ is for masks then
  std::optional<WholeLayer> whole_;           // what runs without a mask
  Slice all_{};                               // the grid
  std::int64_t blocks_ = 0;                   // of the whole layer
  DeviceBuffer rotation_;
};

std::unique_ptr<const BoundStep> LongStep::bind(const StepShape& shape) const {
  return std::make_unique<Bound>(*this, shape);
}

class Long final : public CudaImplementation {
 public:
  std::string_view name() const noexcept override { return "long"; }

  plan::Claim claim(std::span<const plan::LayerProblem> rest,
                    const plan::Conditions& conditions) const override {
    const auto decline = [](const std::string& reason) { return plan::Claim::decline(reason); };
    const auto* layer = dynamic_cast<const AxialAttention*>(rest[0].layer);
    if (!layer) return decline("it runs axial_attention, not " + std::string(rest[0].layer->type()));
    if (conditions.compute_capability != 90)
      return decline(
          "it needs compute capability 9.0 and no other: its products are Hopper's warpgroup products");
    if (conditions.precision != Precision::bf16 && conditions.precision != Precision::fp16)
      return decline("it computes in bf16 and fp16, not " + std::string(to_string(conditions.precision)));
    if (layer->dim % 8 != 0) return decline("dim " + std::to_string(layer->dim) + " is not a multiple of 8");
    if (layer->dim > kMostChannels)
      return decline("dim " + std::to_string(layer->dim) + " is larger than " +
                     std::to_string(kMostChannels));
    const std::int64_t head_pitch = family_->head_pitch(layer->head_dim, conditions.precision);
    if (layer->heads > kMostChannels || head_pitch > kMostChannels ||
        layer->heads * head_pitch > kMostChannels)
      return decline(std::to_string(layer->heads) + " heads of " + std::to_string(head_pitch) +
                     " channels (padded) are more than " + std::to_string(kMostChannels));
    const plan::Claim composed = family_->claim(rest[0], conditions);
    if (!composed) return composed;
    // The attention is the same, the projections are faster: chosen over the composed family where that was
    // measured (docs/long.md), and elsewhere only where that one cannot run.
    const bool measured =
        layer->dim >= 128 && layer->inner() >= 128 && rest[0].input.cells() >= kMeasuredCells;
    double cost = composed.cost * (measured ? 0.9 : 1.1);
    const std::int64_t length = layer->length(rest[0].input);
    const auto any = whole_layer_plan(*layer, head_pitch, conditions);
    const auto whole = any ? whole_layer_plan_for(*any, length) : std::nullopt;
    const std::int64_t sequences = rest[0].input.cells() / length;
    if (whole && conditions.precision == Precision::bf16 &&
        whole_layer_fills(sequences, kMeasuredMultiprocessors))
      cost = std::min(cost, 2e-6 + layer->flops(rest[0].input) / 3.4e14 *
                                       static_cast<double>(whole->longest()) / static_cast<double>(length));
    return plan::Claim::accept(cost);
  }

  std::vector<KernelSpec> kernels(std::span<const plan::LayerProblem> layers,
                                  const plan::Conditions& conditions) const override {
    const auto& layer = static_cast<const AxialAttention&>(*layers[0].layer);
    const std::int64_t head_pitch = family_->head_pitch(layer.head_dim, conditions.precision);
    const AttentionShape shape =
        attention_shape(layer, head_pitch, layer.length(layers[0].input), conditions.precision);
    std::vector<KernelSpec> list;
    if (const auto plan = attention_output_plan(shape, conditions))
      list = {long_attention_kernel(*plan, shape.causal, conditions.precision),
              attention_kernel(shape, conditions.precision)};  // the latter for masks
    else
      list = family_->attention_kernels(shape, conditions);
    const LayerShapes shapes = shapes_of(layer, head_pitch, false);
    for (const bool masked : {false, true})
      list.push_back(projection_kernel(shapes_of(layer, head_pitch, masked).qkv, plan_of(shapes.qkv),
                                       conditions.precision));
    list.push_back(projection_kernel(shapes.output, plan_of(shapes.output), conditions.precision));
    const auto any = whole_layer_plan(layer, head_pitch, conditions);
    if (const auto whole = any ? whole_layer_plan_for(*any, shape.length) : std::nullopt)
      list.push_back(whole_layer_kernel(*whole, layer, conditions.precision));
    return list;
  }

  std::unique_ptr<const Step> build(std::span<const graph::Layer* const> layers,
                                    std::span<const weights::LayerWeights> weights, Precision precision,
                                    const GpuDevice& device) const override {
    return std::make_unique<LongStep>(*family_, static_cast<const AxialAttention&>(*layers[0]), weights[0],
                                      precision, device);
  }

 private:
  std::unique_ptr<const Family> family_ = make_composed_family("");  // no product of a library is asked of it
};

}  // namespace

std::unique_ptr<const CudaImplementation> make_long() { return std::make_unique<Long>(); }

}  // namespace warpweave::cuda::long_sequences
