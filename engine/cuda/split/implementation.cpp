#include "cuda/split/implementation.h"

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/composed/attention.h"
#include "cuda/family.h"
#include "cuda/slices.h"
#include "cuda/split/pack.h"
#include "cuda/split/short_sequences.h"
#include "cuda/split/uploaded.h"
#include "graph/layers/axial_attention.h"
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
  static std::int64_t blocks(std::int64_t tokens, std::int64_t n) {
    return (tokens + kTokens - 1) / kTokens * ((n + kColumns - 1) / kColumns);
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

AttentionTiles attention_tiles(std::int64_t head, std::int64_t length) {
  if (head > 64) return {4, 1, 16};
  if (length <= 16) return {1, 1, 16};
  if (length <= 32) return {2, 1, 32};
  return {4, 2, 32};
}

KernelSpec attention_spec(const AttentionTiles& t, std::int64_t head, bool causal, int parts) {
  return {"split/products.cuh", std::string("warpweave::kernels::composed::attention<") + kScope +
                                    "SplitProducts<" + std::to_string(head) + ", " + std::to_string(parts) +
                                    ">, " + std::to_string(t.warps) + ", " + std::to_string(t.tiles) + ", " +
                                    std::to_string(t.keys) + ", " + (t.ahead ? "true, " : "false, ") +
                                    (causal ? "true" : "false") + ">"};
}

KernelSpec norm_spec(const AxialAttention& layer, int parts) {
  return {"split/norm.cuh", std::string("warpweave::kernels::composed::norm<float, ") + kScope + "Operand<" +
                                std::to_string(parts) + ", " + std::to_string(token_shift(layer.dim)) +
                                ">, " + device_norm(layer.norm.kind) + ", " + std::to_string(layer.dim) +
                                ", " + std::to_string(token_pitch(layer.dim)) + ">"};
}

std::int64_t norm_tokens(std::int64_t dim) {  // of a block, as in kernels/composed/norm.cuh
  std::int64_t lanes = 32;
  while (lanes > 1 && token_pitch(dim) / 4 <= lanes / 2) lanes /= 2;
  return 4 * 32 / lanes;
}

class SplitStep final : public Step {
 public:
  SplitStep(const AxialAttention& layer, const Packed& packed, int parts, const GpuDevice& device)
      : layer_(layer), parts_(parts), device_(device), weights_(packed) {}

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
        attention_tiles_(attention_tiles(head_, length_)),
        project_plan_(layer_.dim, step.parts_),
        one_(ProjectPlan::fits(layer_.dim, step.parts_, conditions(step).shared_memory_per_block)),
        overlap_(conditions(step).compute_capability >= 90) {
    KernelStore& kernels = step.device_.kernels();
    if (one_) {
      project_ = kernels.get(project_spec(layer_, step.parts_));
      project_.allow(project_plan_.shared);
    } else {
      norm_ = kernels.get(norm_spec(layer_, step.parts_));
      norm_blocks_ = step.device_.multiprocessors() * norm_.resident_blocks(128, 0);
      to_heads_ = kernels.get(to_heads_spec(head_, step.parts_));
      to_heads_.allow(LinearPlan::shared(step.parts_));
    }
    to_grid_ = kernels.get(to_grid_spec(layer_.residual, step.parts_));
    to_grid_.allow(LinearPlan::shared(step.parts_));
    attention_ = kernels.get(attention_spec(attention_tiles_, head_, layer_.causal, step.parts_));
    attention_.allow(attention_shared());
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
        project_.launch(run.stream,
                        {.blocks = (tokens + project_plan_.tokens - 1) / project_plan_.tokens,
                         .threads = kThreads,
                         .shared_bytes = project_plan_.shared,
                         .overlap_previous = overlap_},
                        kernels::split::ProjectParams{static_cast<const float*>(run.x), heads,
                                                      static_cast<float>(layer_.norm.eps)});
      } else {
        normalise(run, s, narrow);
        to_heads_.launch(run.stream, product(tokens, heads.n),
                         kernels::split::LinearParams{narrow, heads, token_});
      }

      kernels::AttentionParams a{};
      a.qkv = qkv, a.o = narrow;
      a.mask = run.mask ? run.mask + s.cells.first : nullptr;
      a.tokens = sequences(row, s, s.columns), a.mask_cells = sequences(row, s, s.cells.pitch);
      a.sequences = tokens / length_, a.length = length_, a.heads = layer_.heads;
      a.scale = std::max(step_.weights_.score_scale, 1e-36f);  // not 0: the kernel multiplies -infinity by it
      const std::int64_t tiles = (length_ + attention_tiles_.queries() - 1) / attention_tiles_.queries();
      attention_.launch(run.stream,
                        {.blocks = a.sequences * a.heads * tiles,
                         .threads = attention_tiles_.warps * 32,
                         .shared_bytes = attention_shared(),
                         .overlap_previous = overlap_},
                        a);

      to_grid_.launch(
          run.stream, product(tokens, layer_.dim),
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

  std::size_t attention_shared() const {
    return attention_tiles_.shared_bytes({layer_.heads, head_ * step_.parts_, length_, layer_.causal}, 2);
  }

  Launch product(std::int64_t tokens, std::int64_t n) const {
    return {.blocks = LinearPlan::blocks(tokens, n),
            .threads = kThreads,
            .shared_bytes = LinearPlan::shared(step_.parts_),
            .overlap_previous = overlap_};
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
  AttentionTiles attention_tiles_;
  ProjectPlan project_plan_;
  bool one_;      // whether norm and projection are one kernel
  bool overlap_;  // programmatic dependent launch
  Kernel project_, norm_, to_heads_, attention_, to_grid_;
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
      return {short_kernel(layer, length, parts, false), short_kernel(layer, length, parts, true)};
    const std::int64_t head = head_pitch(layer.head_dim);
    std::vector<KernelSpec> list = {attention_spec(attention_tiles(head, length), head, layer.causal, parts),
                                    to_grid_spec(layer.residual, parts)};
    if (ProjectPlan::fits(layer.dim, parts, conditions.shared_memory_per_block)) {
      list.push_back(project_spec(layer, parts));
    } else {
      list.push_back(norm_spec(layer, parts));
      list.push_back(to_heads_spec(head, parts));
    }
    return list;
  }

  std::unique_ptr<const Step> build(std::span<const graph::Layer* const> layers,
                                    std::span<const weights::LayerWeights> weights, Precision precision,
                                    const GpuDevice& device) const override {
    const auto& layer = static_cast<const AxialAttention&>(*layers[0]);
    return std::make_unique<SplitStep>(layer, pack(layer, weights[0]), parts_of(precision), device);
  }
};

}  // namespace

std::unique_ptr<const CudaImplementation> make_split() { return std::make_unique<Split>(); }

}  // namespace warpweave::cuda::split
