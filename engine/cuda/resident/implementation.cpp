#include "cuda/resident/implementation.h"

#include <algorithm>
#include <span>

#include "cuda/memory.h"
#include "cuda/resident/choose.h"
#include "graph/layers/axial_attention.h"
#include "resident/arguments.h"

namespace warpweave::cuda::resident {
namespace {

using graph::AxialAttention;

// Sequences are counted in 32 bits; more are run in several launches of whole samples.
constexpr std::int64_t kMostSequences = std::int64_t{1} << 30;

Problem problem_of(const AxialAttention& layer, Precision precision, bool mask) {
  Problem p;
  p.dim = static_cast<int>(layer.dim);
  p.heads = static_cast<int>(layer.heads);
  p.head_dim = static_cast<int>(layer.head_dim);
  p.element = precision == Precision::bf16 ? Element::bf16 : Element::f16;
  p.norm = layer.norm.kind == graph::NormKind::layer ? Norm::layer
           : layer.norm.kind == graph::NormKind::rms ? Norm::rms
                                                     : Norm::none;
  p.eps = layer.norm.eps;
  p.scale = layer.scale;
  p.qkv_bias = layer.qkv_bias, p.out_bias = layer.out_bias;
  p.residual = layer.residual, p.causal = layer.causal, p.mask = mask;
  if (layer.rope) {
    p.rope_dims = static_cast<int>(layer.rope->dims);
    p.rope_half = layer.rope->style == graph::Rope::Style::half;
    p.rope_theta = layer.rope->theta;
  }
  return p;
}

Tensors tensors_of(const weights::LayerWeights& w) {
  return {w.find("norm.weight"), w.find("norm.bias"),  w.find("qkv.weight"),
          w.find("qkv.bias"),    w.find("out.weight"), w.find("out.bias")};
}

Gpu gpu_of(const plan::Conditions& c) { return {c.compute_capability, c.shared_memory_per_block}; }

KernelSpec spec(const Problem& p, const Variant& v) { return {kernel_file(v), kernel_expression(p, v)}; }

class ResidentStep final : public Step {
 public:
  ResidentStep(const AxialAttention& layer, const weights::LayerWeights& weights, Precision precision,
               const GpuDevice& device)
      : layer_(layer), precision_(precision), device_(device) {
    const Tensors tensors = tensors_of(weights);
    for (const bool mask : {false, true}) {
      const auto packed = pack(problem_of(layer, precision, mask), tensors);
      packed_[mask] = upload_bytes(std::as_bytes(std::span(packed)), "packed weights");
    }
  }

  bool in_place() const noexcept override { return true; }
  std::unique_ptr<const BoundStep> bind(const StepShape& shape) const override;

 private:
  class Bound;
  AxialAttention layer_;
  Precision precision_;
  const GpuDevice& device_;
  DeviceBuffer packed_[2];  // without and with a mask
};

class ResidentStep::Bound final : public BoundStep {
 public:
  Bound(const ResidentStep& step, const StepShape& shape) : step_(step), batch_(shape.batch) {
    const AxialAttention& layer = step.layer_;
    const plan::Conditions conditions = step.device_.conditions(step.precision_);
    const bool row = layer.axis == graph::Axis::row;
    args_.sample_cells = shape.input.cells();
    args_.sequence_cells = row ? shape.input.columns : 1;
    args_.token_cells = row ? 1 : shape.input.columns;
    args_.per_sample = static_cast<unsigned>(layer.sequences(shape.input));
    args_.by_sample = layout::Divisor::of(args_.per_sample);
    args_.length = static_cast<int>(layer.length(shape.input));
    args_.eps = static_cast<float>(layer.norm.eps);
    samples_ = std::clamp<std::int64_t>(kMostSequences / args_.per_sample, 1, batch_);
    for (const bool mask : {false, true}) {
      const Problem p = problem_of(layer, step.precision_, mask);
      const Choice choice = choose(p, args_.length, gpu_of(conditions));
      variant_[mask] = pick(choice, samples_ * args_.per_sample, step.device_.multiprocessors());
      kernel_[mask] = step.device_.kernels().get(spec(p, variant_[mask]));
      kernel_[mask].allow(static_cast<std::size_t>(variant_[mask].shared_bytes));
      if (p.rope_dims > 0 && !mask) {
        const auto table = rotation(p, args_.length);
        rotation_ = upload_bytes(std::as_bytes(std::span(table)), "rotations");
      }
    }
    args_.rotation = reinterpret_cast<const float*>(rotation_.data());
  }

  std::size_t workspace_bytes() const noexcept override { return 0; }

  void enqueue(const StepRun& run) const override {
    const bool mask = run.mask != nullptr;
    const Variant& v = variant_[mask];
    for (std::int64_t first = 0; first < batch_; first += samples_) {
      ResidentArguments a = args_;
      const std::int64_t cell = first * args_.sample_cells, byte = cell * step_.layer_.dim * 2;
      a.x = static_cast<const std::byte*>(run.x) + byte;
      a.y = static_cast<std::byte*>(run.y) + byte;
      a.mask = mask ? run.mask + cell : nullptr;
      a.weights = step_.packed_[mask].data();
      a.sequences = static_cast<unsigned>(std::min(samples_, batch_ - first)) * args_.per_sample;
      const std::int64_t blocks =
          (std::int64_t{a.sequences} + v.sequences_per_block - 1) / v.sequences_per_block;
      const std::int64_t most =  // persistent blocks
          v.kind == Variant::Kind::few ? blocks : std::int64_t{step_.device_.multiprocessors()};
      kernel_[mask].launch(run.stream,
                           {.blocks = std::min(blocks, most),
                            .threads = 32 * v.warps,
                            .shared_bytes = static_cast<std::size_t>(v.shared_bytes),
                            .overlap_previous = true},
                           a);
    }
  }

 private:
  const ResidentStep& step_;
  std::int64_t batch_, samples_;  // of a launch
  ResidentArguments args_{};
  Variant variant_[2];
  Kernel kernel_[2];
  DeviceBuffer rotation_;
};

std::unique_ptr<const BoundStep> ResidentStep::bind(const StepShape& shape) const {
  return std::make_unique<Bound>(*this, shape);
}

class Resident final : public CudaImplementation {
 public:
  std::string_view name() const noexcept override { return "resident"; }

  plan::Claim claim(std::span<const plan::LayerProblem> rest,
                    const plan::Conditions& conditions) const override {
    const auto* layer = dynamic_cast<const AxialAttention*>(rest[0].layer);
    if (!layer)
      return plan::Claim::decline("it runs axial_attention, not " + std::string(rest[0].layer->type()));
    if (conditions.precision != Precision::bf16 && conditions.precision != Precision::fp16)
      return plan::Claim::decline("it computes in bf16 and fp16, not " +
                                  std::string(to_string(conditions.precision)));
    if (layer->sequences(rest[0].input) > kMostSequences)
      return plan::Claim::decline("more than 2^30 sequences in a sample");
    if (layer->heads > 4096 || layer->dim > 4096 || layer->head_dim > 4096)
      return plan::Claim::decline("heads, dim or head_dim is larger than 4096");
    for (const bool mask : {false, true}) {
      const Choice choice = choose(problem_of(*layer, conditions.precision, mask),
                                   layer->length(rest[0].input), gpu_of(conditions));
      if (!choice.declined.empty()) return plan::Claim::decline(choice.declined);
    }
    if (const weights::LayerWeights* const weights = rest[0].weights) {
      std::string reason =
          out_of_range(problem_of(*layer, conditions.precision, false), tensors_of(*weights));
      if (!reason.empty()) return plan::Claim::decline(std::move(reason));
    }
    // A launch, and what the measured layers reach (docs/resident.md).
    return plan::Claim::accept(3e-6 + layer->flops(rest[0].input) / 3e14);
  }

  std::vector<KernelSpec> kernels(std::span<const plan::LayerProblem> layers,
                                  const plan::Conditions& conditions) const override {
    const auto& layer = static_cast<const AxialAttention&>(*layers[0].layer);
    std::vector<KernelSpec> list;
    for (const bool mask : {false, true}) {
      const Problem p = problem_of(layer, conditions.precision, mask);
      for (const Variant& v : choose(p, layer.length(layers[0].input), gpu_of(conditions)).variants)
        list.push_back(spec(p, v));
    }
    return list;
  }

  std::unique_ptr<const Step> build(std::span<const graph::Layer* const> layers,
                                    std::span<const weights::LayerWeights> weights, Precision precision,
                                    const GpuDevice& device) const override {
    return std::make_unique<ResidentStep>(static_cast<const AxialAttention&>(*layers[0]), weights[0],
                                          precision, device);
  }
};

}  // namespace

std::unique_ptr<const CudaImplementation> make_resident() { return std::make_unique<Resident>(); }

}  // namespace warpweave::cuda::resident
