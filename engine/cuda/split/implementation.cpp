#include "cuda/split/implementation.h"

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/family.h"
#include "cuda/slices.h"
#include "cuda/split/attention.h"
#include "cuda/split/pack.h"
#include "cuda/split/short_sequences.h"
#include "cuda/split/uploaded.h"
#include "cuda/split/wide.h"
#include "cuda/tensor_map.h"
#include "graph/layers/axial_attention.h"
#include "layout/norm_plan.h"
#include "split/params.h"

namespace warpweave::cuda::split {
namespace {

using graph::AxialAttention;
using graph::Axis;

constexpr std::int64_t kMostChannels = 2048;  // of a token, in a warp's registers
constexpr std::int64_t kMostHeadDim = 128;
constexpr char kScope[] = "warpweave::kernels::split::";

constexpr int kThreads = 256;  // of all products

int parts_of(Precision precision) { return precision == Precision::fp32 ? 2 : 1; }

// Bytes of a row of a stage of a product: 32 of k.
constexpr std::int64_t stage_pitch(int parts) { return parts * kDepth * 2 + 16; }

// Blocks of kernels/split/linear.cuh.
struct LinearPlan {
  static constexpr std::int64_t kTokens = 128, kColumns = 64;
  static std::size_t shared(int parts) {
    return static_cast<std::size_t>(3 *
                                    (kTokens * stage_pitch(parts) + kColumns * stage_pitch(kWeightParts)));
  }
};

// Blocks of kernels/split/project.cuh: norm and q, k, v in one, where the channels of its tokens fit.
struct ProjectPlan {
  static constexpr std::int64_t kMostColumns = 128;
  static_assert(kColumns % kMostColumns == 0 &&
                kColumns % LinearPlan::kColumns == 0);  // whole blocks are read
  std::int64_t tokens;
  std::size_t shared;
  ProjectPlan(std::int64_t dim, int parts) : tokens(dim > 128 ? 64 : 128) {
    const std::int64_t depth = (dim + kDepth - 1) / kDepth * kDepth;
    const std::int64_t stages = dim > 128 ? 2 : 3;
    const std::int64_t columns = dim > 128 ? kMostColumns : 64;  // of the weight at a time
    shared = static_cast<std::size_t>(tokens * (parts * depth * 2 + 16) +
                                      stages * columns * stage_pitch(kWeightParts));
  }
  static bool fits(std::int64_t dim, int parts, std::int64_t shared_memory) {
    return dim <= 256 && static_cast<std::int64_t>(ProjectPlan(dim, parts).shared) <= shared_memory;
  }
};

KernelSpec project_spec(const AxialAttention& layer, int parts) {
  return {"split/project.cuh", kScope + ("project<" + std::to_string(parts)) + ", " +
                                   device_norm(layer.norm.kind) + ", " + std::to_string(layer.dim) + ", " +
                                   std::to_string(head_pitch(layer.head_dim)) + ">"};
}
KernelSpec to_heads_spec(std::int64_t head, int parts) {
  return {"split/linear.cuh",
          kScope + ("to_heads<" + std::to_string(parts)) + ", " + std::to_string(head) + ">"};
}
KernelSpec to_grid_spec(bool residual, int parts) {
  return {"split/linear.cuh",
          kScope + ("to_grid<" + std::to_string(parts)) + (residual ? ", true>" : ", false>")};
}

KernelSpec norm_spec(const AxialAttention& layer, int parts) {
  return {"split/norm.cuh", std::string("warpweave::kernels::composed::norm<float, ") + kScope + "Operand<" +
                                std::to_string(parts) + ", " + std::to_string(token_shift(layer.dim)) +
                                ">, " + device_norm(layer.norm.kind) + ", " + std::to_string(layer.dim) +
                                ", " + std::to_string(token_pitch(layer.dim)) + ">"};
}

std::int64_t norm_tokens(std::int64_t dim) {  // of a block at a time
  return layout::NormPlan{static_cast<int>(dim), static_cast<int>(token_pitch(dim)), sizeof(float)}.tokens();
}

class SplitStep final : public Step {
 public:
  SplitStep(const AxialAttention& layer, const weights::LayerWeights& weights, int parts,
            const GpuDevice& device)
      : layer_(layer), parts_(parts), device_(device), weights_(layer, weights, parts) {}

  bool in_place() const noexcept override { return true; }
  std::unique_ptr<const BoundStep> bind(const StepShape& shape) const override;

 private:
  class Bound;
  AxialAttention layer_;
  int parts_;
  const GpuDevice& device_;
  UploadedLayer weights_;
};

class SplitStep::Bound final : public BoundStep {
 public:
  Bound(const SplitStep& step, const StepShape& shape)
      : step_(step),
        layer_(step.layer_),
        length_(layer_.length(shape.input)),
        head_(head_pitch(layer_.head_dim)),
        inner_(layer_.heads * head_),
        token_(token_pitch(layer_.dim)),
        narrow_(std::max(token_, inner_) * 2 * step.parts_),
        wide_(3 * inner_ * 2 * step.parts_),
        slices_(shape.batch, shape.input.rows, shape.input.columns,
                layer_.axis == Axis::row ? Cut::rows : Cut::columns, narrow_ + wide_, 2,
                shape.workspace_limit),
        one_(ProjectPlan::fits(layer_.dim, step.parts_, conditions(step).shared_memory_per_block)),
        wide_heads_(wide_takes(3 * inner_, conditions(step))),
        wide_grid_(wide_takes(layer_.dim, conditions(step))) {
    KernelStore& kernels = step.device_.kernels();
    const int parts = step.parts_;
    const auto get = [&kernels](const KernelSpec& spec, std::size_t shared) {
      const Kernel kernel = kernels.get(spec);
      kernel.allow(shared);
      return kernel;
    };
    if (one_) {
      const ProjectPlan plan(layer_.dim, parts);
      heads_ = wide_heads_
                   ? Product{get(wide_project_spec(layer_, parts),
                                 wide_project_plan(layer_.dim, parts).shared_bytes),
                             WidePlan::kTokens, 3 * inner_, wide_project_plan(layer_.dim, parts).threads,
                             wide_project_plan(layer_.dim, parts).shared_bytes}
                   : Product{get(project_spec(layer_, parts), plan.shared), plan.tokens, 3 * inner_, kThreads,
                             plan.shared};
    } else {
      norm_ = kernels.get(norm_spec(layer_, parts));
      norm_blocks_ = step.device_.multiprocessors() * norm_.resident_blocks(128, 0);
      heads_ = wide_heads_
                   ? wide_product(get(wide_to_heads_spec(head_, parts), wide_linear_plan(parts).shared_bytes))
                   : product(get(to_heads_spec(head_, parts), LinearPlan::shared(parts)));
    }
    grid_ = wide_grid_ ? wide_product(get(wide_to_grid_spec(layer_.residual, parts),
                                          wide_linear_plan(parts).shared_bytes))
                       : product(get(to_grid_spec(layer_.residual, parts), LinearPlan::shared(parts)));
    if (wide_heads_ || wide_grid_) prepare_tensor_maps();
    if (wide_heads_) encode_weight(heads_map_, step.weights_.qkv.weight(), 3 * inner_, layer_.dim);
    if (wide_grid_) encode_weight(grid_map_, step.weights_.out.weight(), layer_.dim, inner_);
    attention_ = make_attention({layer_.heads, head_, length_, layer_.causal}, step.parts_, step.device_);
    rotations_ = upload_rotations(layer_, length_);
  }

  std::size_t workspace_bytes() const noexcept override {
    const std::size_t tokens = slices_.largest();
    return aligned(tokens * narrow_) + aligned(tokens * wide_);
  }

  void enqueue(const StepRun& run) const override {
    std::byte* const narrow = run.workspace;  // normalised tokens, then the heads' results
    std::byte* const qkv = narrow + aligned(static_cast<std::size_t>(slices_.largest()) * narrow_);
    const bool row = layer_.axis == Axis::row;
    slices_.for_each([&](const Slice& s) {
      const std::int64_t tokens = s.tokens();
      kernels::split::HeadsParams heads{};
      heads.weight = step_.weights_.qkv.weight();
      heads.y = qkv;
      heads.cells = s.cells, heads.tokens = tokens, heads.n = 3 * inner_;
      heads.position_divisor = row ? 1 : s.columns, heads.length = length_;
      if (layer_.rope) {
        heads.rotations = reinterpret_cast<const float*>(rotations_.data());
        heads.rotated = static_cast<int>(2 * inner_);
        heads.rotated_channels = static_cast<int>(layer_.rope->dims);
      }
      if (one_) {
        const kernels::split::ProjectParams p{static_cast<const float*>(run.x), heads,
                                              static_cast<float>(layer_.norm.eps)};
        if (wide_heads_)
          launch(run.stream, heads_, tokens, kernels::split::WideProjectParams{heads_map_, p});
        else
          launch(run.stream, heads_, tokens, p);
      } else {
        normalise(run, s, narrow);
        launch_linear(run.stream, heads_, wide_heads_, heads_map_, tokens,
                      kernels::split::LinearParams{narrow, heads, token_});
      }

      kernels::AttentionParams a{};
      a.qkv = qkv, a.o = narrow;
      a.mask = run.mask ? run.mask + s.cells.first : nullptr;
      a.tokens = sequences(row, s, s.columns), a.mask_cells = sequences(row, s, s.cells.pitch);
      a.sequences = tokens / length_, a.length = length_, a.heads = layer_.heads;
      a.scale = std::max(step_.weights_.score_scale, 1e-36f);  // not 0: the kernel multiplies -infinity by it
      attention_->enqueue(run.stream, a);

      launch_linear(
          run.stream, grid_, wide_grid_, grid_map_, tokens,
          kernels::split::OutputParams{narrow, step_.weights_.out.weight(), static_cast<float*>(run.y),
                                       layer_.residual ? static_cast<const float*>(run.x) : nullptr, s.cells,
                                       tokens, layer_.dim, inner_});
    });
  }

 private:
  static plan::Conditions conditions(const SplitStep& step) {
    return step.device_.conditions(Precision::fp32);
  }

  static kernels::Sequences sequences(bool row, const Slice& s, std::int64_t pitch) {
    return row ? kernels::Sequences{s.rows, s.rows * pitch, pitch, 1}
               : kernels::Sequences{s.columns, s.rows * pitch, 1, pitch};
  }

  // A kernel, and what a block of it owns: all columns where columns are the product's.
  struct Product {
    Kernel kernel;
    std::int64_t tokens = 0, columns = 0;
    int threads = 0;
    std::size_t shared = 0;
  };
  Product product(const Kernel& kernel) const {
    return {kernel, LinearPlan::kTokens, LinearPlan::kColumns, kThreads, LinearPlan::shared(step_.parts_)};
  }
  Product wide_product(const Kernel& kernel) const {
    return {kernel, WidePlan::kTokens, WidePlan::kColumns, wide_linear_plan(step_.parts_).threads,
            wide_linear_plan(step_.parts_).shared_bytes};
  }

  static void encode_weight(kernels::split::TensorMap& map, const kernels::split::Weight& weight,
                            std::int64_t n, std::int64_t k) {
    encode_rows(map, weight.rows, (n + kColumns - 1) / kColumns * kColumns, kWeightParts,
                (k + kDepth - 1) / kDepth * kDepth);
  }

  static std::int64_t columns(const kernels::split::LinearParams& p) { return p.heads.n; }
  static std::int64_t columns(const kernels::split::OutputParams& p) { return p.n; }
  static std::int64_t columns(const kernels::split::ProjectParams& p) { return p.heads.n; }
  static std::int64_t columns(const kernels::split::WideProjectParams& p) { return p.project.heads.n; }
  template <class P>
  static std::int64_t columns(const kernels::split::WideLinearParams<P>& p) {
    return columns(p.linear);
  }

  template <class Params>
  void launch(cudaStream_t stream, const Product& p, std::int64_t tokens, const Params& params) const {
    p.kernel.launch(
        stream,
        {.blocks = (tokens + p.tokens - 1) / p.tokens * ((columns(params) + p.columns - 1) / p.columns),
         .threads = p.threads,
         .shared_bytes = p.shared,
         .overlap_previous = true},
        params);
  }

  template <class Params>
  void launch_linear(cudaStream_t stream, const Product& p, bool wide,
                     const kernels::split::TensorMap& weight, std::int64_t tokens,
                     const Params& params) const {
    if (!wide) return launch(stream, p, tokens, params);
    kernels::split::WideLinearParams<Params> wide_params{weight, {}, params};
    encode_rows(wide_params.a, params.a, tokens, step_.parts_, params.k);
    launch(stream, p, tokens, wide_params);
  }

  void normalise(const StepRun& run, const Slice& s, std::byte* to) const {
    kernels::NormParams p{};
    p.x = run.x, p.y = to;
    p.cells = s.cells, p.tokens = s.tokens(), p.dim = layer_.dim, p.pitch = token_;
    p.eps = static_cast<float>(layer_.norm.eps);
    const std::int64_t per_block = norm_tokens(layer_.dim), blocks = (p.tokens + per_block - 1) / per_block;
    norm_.launch(run.stream, {.blocks = std::min(blocks, norm_blocks_), .threads = 128}, p);
  }

  const SplitStep& step_;
  const AxialAttention& layer_;
  std::int64_t length_, head_, inner_, token_;
  std::int64_t narrow_, wide_;  // bytes per token
  Slices slices_;
  bool one_;                     // whether norm and projection are one kernel
  bool wide_heads_, wide_grid_;  // kernels of 9.0
  Kernel norm_;
  Product heads_, grid_;
  kernels::split::TensorMap heads_map_{}, grid_map_{};  // of the weights
  std::unique_ptr<const AttentionOperation> attention_;
  std::int64_t norm_blocks_ = 1;
  DeviceBuffer rotations_;
};

std::unique_ptr<const BoundStep> SplitStep::bind(const StepShape& shape) const {
  const std::int64_t shared = device_.conditions(Precision::fp32).shared_memory_per_block;
  if (takes_short(layer_, layer_.length(shape.input), parts_, shared))
    return bind_short(layer_, weights_, parts_, shape, device_);
  return std::make_unique<Bound>(*this, shape);
}

class Split final : public CudaImplementation {
 public:
  std::string_view name() const noexcept override { return "split"; }

  plan::Claim claim(std::span<const plan::LayerProblem> rest,
                    const plan::Conditions& conditions) const override {
    const auto* layer = dynamic_cast<const AxialAttention*>(rest[0].layer);
    if (!layer)
      return plan::Claim::decline("it runs axial_attention, not " + std::string(rest[0].layer->type()));
    if (conditions.precision != Precision::fp32 && conditions.precision != Precision::tf32)
      return plan::Claim::decline("it computes in fp32 and tf32, not " +
                                  std::string(to_string(conditions.precision)));
    if (conditions.precision == Precision::tf32 && rest[0].input.cells() < 8)
      return plan::Claim::decline("tf32 gains nothing on fewer than 8 cells; plain float32 is exact");
    if (layer->norm.kind == graph::NormKind::none)
      return plan::Claim::decline("without a norm its operands have no bound");
    if (layer->sequences(rest[0].input) > kMostSequences)
      return plan::Claim::decline("more than 2^30 sequences in a sample");
    if (layer->dim % 4 != 0 || layer->dim > kMostChannels)
      return plan::Claim::decline("dim " + std::to_string(layer->dim) + " is no multiple of 4 up to " +
                                  std::to_string(kMostChannels));
    if (layer->head_dim > kMostHeadDim)
      return plan::Claim::decline("head_dim " + std::to_string(layer->head_dim) + " is larger than " +
                                  std::to_string(kMostHeadDim));
    if (takes_short(*layer, layer->length(rest[0].input), parts_of(conditions.precision),
                    conditions.shared_memory_per_block))
      return plan::Claim::accept(5e-6 + layer->flops(rest[0].input) / 7e13);
    // Four launches, the products, and passes over the grid and q, k, v.
    const double bytes = static_cast<double>(rest[0].input.cells() * layer->dim) * 4 * 9;
    return plan::Claim::accept(9e-6 + layer->flops(rest[0].input) / 1e14 + bytes / 4e12);
  }

  std::vector<KernelSpec> kernels(std::span<const plan::LayerProblem> layers,
                                  const plan::Conditions& conditions) const override {
    const auto& layer = static_cast<const AxialAttention&>(*layers[0].layer);
    const std::int64_t length = layer.length(layers[0].input);
    const int parts = parts_of(conditions.precision);
    if (takes_short(layer, length, parts, conditions.shared_memory_per_block))
      return short_kernels(layer, length, parts, conditions.shared_memory_per_block);
    const std::int64_t head = head_pitch(layer.head_dim);
    std::vector<KernelSpec> list =
        attention_kernels({layer.heads, head, length, layer.causal}, parts, conditions);
    list.push_back(wide_takes(layer.dim, conditions) ? wide_to_grid_spec(layer.residual, parts)
                                                     : to_grid_spec(layer.residual, parts));
    const bool wide = wide_takes(3 * layer.heads * head, conditions);
    if (ProjectPlan::fits(layer.dim, parts, conditions.shared_memory_per_block)) {
      list.push_back(wide ? wide_project_spec(layer, parts) : project_spec(layer, parts));
    } else {
      list.push_back(norm_spec(layer, parts));
      list.push_back(wide ? wide_to_heads_spec(head, parts) : to_heads_spec(head, parts));
    }
    return list;
  }

  std::vector<KernelSpec> kernels_of_session(std::span<const plan::LayerProblem> layers,
                                             const plan::Conditions& conditions,
                                             const SessionSize& size) const override {
    const auto& layer = static_cast<const AxialAttention&>(*layers[0].layer);
    const int parts = parts_of(conditions.precision);
    const std::int64_t shared_memory = conditions.shared_memory_per_block;
    return takes_short(layer, layer.length(layers[0].input), parts, shared_memory)
               ? short_kernels_of_session(layer, layers[0].input, parts, shared_memory, size)
               : kernels(layers, conditions);
  }

  std::unique_ptr<const Step> build(std::span<const graph::Layer* const> layers,
                                    std::span<const weights::LayerWeights> weights, Precision precision,
                                    const GpuDevice& device) const override {
    const auto& layer = static_cast<const AxialAttention&>(*layers[0]);
    return std::make_unique<SplitStep>(layer, weights[0], parts_of(precision), device);
  }
};

}  // namespace

std::unique_ptr<const CudaImplementation> make_split() { return std::make_unique<Split>(); }

}  // namespace warpweave::cuda::split
