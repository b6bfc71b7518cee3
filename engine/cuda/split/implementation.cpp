#include "cuda/split/implementation.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cuda/composed/attention.h"
#include "cuda/family.h"
#include "cuda/memory.h"
#include "cuda/slices.h"
#include "cuda/split/pack.h"
#include "graph/layers/axial_attention.h"
#include "split/params.h"

namespace warpweave::cuda::split {
namespace {

using graph::AxialAttention;
using graph::Axis;

constexpr std::int64_t kMostChannels = 2048;  // of a token, in a warp's registers
constexpr std::int64_t kMostHeadDim = 128;
constexpr char kScope[] = "warpweave::kernels::split::";

// Blocks of kernels/split/linear.cuh.
constexpr int kTokens = 128, kBlockColumns = 64, kThreads = 256;
constexpr std::size_t kLinearShared = 3 * (kTokens + kBlockColumns) * (kParts * kDepth * 2 + 16);
static_assert(kColumns % kBlockColumns == 0);

KernelSpec linear_spec(std::int64_t head) {
  return {"split/linear.cuh", kScope + ("linear<" + std::to_string(head)) + ">"};
}

AttentionTiles attention_tiles(std::int64_t head, std::int64_t length) {
  if (head > 64) return {4, 1, 16};
  if (length <= 16) return {1, 1, 16};
  if (length <= 32) return {2, 1, 32};
  return {4, 2, 32};
}

KernelSpec attention_spec(const AttentionTiles& t, std::int64_t head, bool causal) {
  return {"split/products.cuh", std::string("warpweave::kernels::composed::attention<") + kScope +
                                    "SplitProducts<" + std::to_string(head) + ">, " +
                                    std::to_string(t.warps) + ", " + std::to_string(t.tiles) + ", " +
                                    std::to_string(t.keys) + ", " + (t.ahead ? "true, " : "false, ") +
                                    (causal ? "true" : "false") + ">"};
}

KernelSpec norm_spec(const AxialAttention& layer) {
  return {"split/norm.cuh", std::string("warpweave::kernels::composed::norm<float, ") + kScope + "Operand<" +
                                std::to_string(token_shift(layer.dim)) + ">, " +
                                device_norm(layer.norm.kind) + ", " + std::to_string(layer.dim) + ", " +
                                std::to_string(token_pitch(layer.dim)) + ">"};
}

std::int64_t norm_tokens(std::int64_t dim) {  // of a block, as in kernels/composed/norm.cuh
  std::int64_t lanes = 32;
  while (lanes > 1 && token_pitch(dim) / 4 <= lanes / 2) lanes /= 2;
  return 4 * 32 / lanes;
}

// An operand on the device.
struct Uploaded {
  DeviceBuffer rows, factor, bias;
  explicit Uploaded(const Operand& o)
      : rows(upload_bytes(std::as_bytes(std::span(o.rows)), "packed weights")),
        factor(upload(o.factor)),
        bias(upload(o.bias)) {}
  void give(kernels::split::LinearParams& p) const {
    p.w = rows.data();
    p.factor = reinterpret_cast<const float*>(factor.data());
    p.bias = reinterpret_cast<const float*>(bias.data());
  }
};

class SplitStep final : public Step {
 public:
  SplitStep(const AxialAttention& layer, const Packed& packed, const GpuDevice& device)
      : layer_(layer),
        device_(device),
        qkv_(packed.qkv),
        out_(packed.out),
        score_scale_(packed.score_scale) {}

  bool in_place() const noexcept override { return true; }
  std::unique_ptr<const BoundStep> bind(const StepShape& shape) const override;

 private:
  class Bound;
  AxialAttention layer_;
  const GpuDevice& device_;
  Uploaded qkv_, out_;
  float score_scale_;
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
        narrow_(std::max(token_, inner_) * 2 * kParts),
        wide_(3 * inner_ * 2 * kParts),
        slices_(shape.batch, shape.input.rows, shape.input.columns,
                layer_.axis == Axis::row ? Cut::rows : Cut::columns, narrow_ + wide_, 2,
                shape.workspace_limit),
        attention_tiles_(attention_tiles(head_, length_)) {
    KernelStore& kernels = step.device_.kernels();
    norm_ = kernels.get(norm_spec(layer_));
    norm_blocks_ = step.device_.multiprocessors() * norm_.resident_blocks(128, 0);
    to_heads_ = kernels.get(linear_spec(head_));
    to_heads_.allow(kLinearShared);
    to_cells_ = kernels.get(linear_spec(0));
    to_cells_.allow(kLinearShared);
    attention_ = kernels.get(attention_spec(attention_tiles_, head_, layer_.causal));
    attention_.allow(attention_shared());
    if (layer_.rope) rotations_ = upload(rotations());
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
      kernels::NormParams n{};
      n.x = run.x, n.y = narrow;
      n.cells = s.cells, n.tokens = tokens, n.dim = layer_.dim, n.pitch = token_;
      n.eps = static_cast<float>(layer_.norm.eps);
      const std::int64_t per_block = norm_tokens(layer_.dim);
      norm_.launch(run.stream,
                   {.blocks = std::min((tokens + per_block - 1) / per_block, norm_blocks_), .threads = 128},
                   n);

      kernels::split::LinearParams to_heads{};
      step_.qkv_.give(to_heads);
      to_heads.a = narrow, to_heads.y = qkv;
      to_heads.tokens = tokens, to_heads.n = 3 * inner_, to_heads.k = token_;
      to_heads.position_divisor = row ? 1 : s.columns, to_heads.length = length_;
      if (layer_.rope) {
        to_heads.rotations = reinterpret_cast<const float*>(rotations_.data());
        to_heads.rotated = static_cast<int>(2 * inner_);
        to_heads.rotated_channels = static_cast<int>(layer_.rope->dims);
      }
      product(to_heads_, run.stream, to_heads);

      kernels::AttentionParams a{};
      a.qkv = qkv, a.o = narrow;
      a.mask = run.mask ? run.mask + s.cells.first : nullptr;
      a.tokens = sequences(row, s, s.columns), a.mask_cells = sequences(row, s, s.cells.pitch);
      a.sequences = tokens / length_, a.length = length_, a.heads = layer_.heads;
      a.scale = std::max(step_.score_scale_, 1e-36f);  // not 0: the kernel multiplies -infinity by it
      const std::int64_t tiles = (length_ + attention_tiles_.queries() - 1) / attention_tiles_.queries();
      attention_.launch(run.stream,
                        {.blocks = a.sequences * a.heads * tiles,
                         .threads = attention_tiles_.warps * 32,
                         .shared_bytes = attention_shared()},
                        a);

      kernels::split::LinearParams to_cells{};
      step_.out_.give(to_cells);
      to_cells.a = narrow, to_cells.y = run.y, to_cells.residual = layer_.residual ? run.x : nullptr;
      to_cells.cells = s.cells, to_cells.tokens = tokens, to_cells.n = layer_.dim, to_cells.k = inner_;
      product(to_cells_, run.stream, to_cells);
    });
  }

 private:
  static kernels::Sequences sequences(bool row, const Slice& s, std::int64_t pitch) {
    return row ? kernels::Sequences{s.rows, s.rows * pitch, pitch, 1}
               : kernels::Sequences{s.columns, s.rows * pitch, 1, pitch};
  }

  std::size_t attention_shared() const {
    return attention_tiles_.shared_bytes({layer_.heads, head_ * kParts, length_, layer_.causal}, 2);
  }

  void product(const Kernel& kernel, cudaStream_t stream, const kernels::split::LinearParams& p) const {
    const std::int64_t down = (p.tokens + kTokens - 1) / kTokens;
    const std::int64_t across = (p.n + kBlockColumns - 1) / kBlockColumns;
    kernel.launch(stream, {.blocks = down * across, .threads = kThreads, .shared_bytes = kLinearShared}, p);
  }

  std::vector<float> rotations() const {
    const std::int64_t pairs = layer_.rope->dims / 2;
    std::vector<float> table;
    table.reserve(static_cast<std::size_t>(length_ * pairs * 2));
    for (std::int64_t position = 0; position < length_; ++position) {
      for (std::int64_t c = 0; c < pairs; ++c) {
        const double angle =
            static_cast<double>(position) *
            std::pow(layer_.rope->theta, -2.0 * static_cast<double>(c) / static_cast<double>(2 * pairs));
        table.push_back(static_cast<float>(std::cos(angle)));
        table.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    return table;
  }

  const SplitStep& step_;
  const AxialAttention& layer_;
  std::int64_t length_, head_, inner_, token_;
  std::int64_t narrow_, wide_;  // bytes per token
  Slices slices_;
  AttentionTiles attention_tiles_;
  Kernel norm_, to_heads_, attention_, to_cells_;
  std::int64_t norm_blocks_ = 1;
  DeviceBuffer rotations_;
};

std::unique_ptr<const BoundStep> SplitStep::bind(const StepShape& shape) const {
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
    if (conditions.precision != Precision::fp32)
      return plan::Claim::decline("it computes in fp32, not " + std::string(to_string(conditions.precision)));
    if (layer->norm.kind == graph::NormKind::none)
      return plan::Claim::decline("without a norm its operands have no bound");
    if (layer->dim % 4 != 0 || layer->dim > kMostChannels)
      return plan::Claim::decline("dim " + std::to_string(layer->dim) + " is no multiple of 4 up to " +
                                  std::to_string(kMostChannels));
    if (layer->head_dim > kMostHeadDim)
      return plan::Claim::decline("head_dim " + std::to_string(layer->head_dim) + " is larger than " +
                                  std::to_string(kMostHeadDim));
    // Four launches, the products, and passes over the grid and q, k, v.
    const double bytes = static_cast<double>(rest[0].input.cells() * layer->dim) * 4 * 9;
    return plan::Claim::accept(9e-6 + layer->flops(rest[0].input) / 1e14 + bytes / 4e12);
  }

  std::vector<KernelSpec> kernels(std::span<const plan::LayerProblem> layers,
                                  const plan::Conditions&) const override {
    const auto& layer = static_cast<const AxialAttention&>(*layers[0].layer);
    const std::int64_t head = head_pitch(layer.head_dim);
    return {norm_spec(layer), linear_spec(head), linear_spec(0),
            attention_spec(attention_tiles(head, layer.length(layers[0].input)), head, layer.causal)};
  }

  std::unique_ptr<const Step> build(std::span<const graph::Layer* const> layers,
                                    std::span<const weights::LayerWeights> weights, Precision,
                                    const GpuDevice& device) const override {
    const auto& layer = static_cast<const AxialAttention&>(*layers[0]);
    return std::make_unique<SplitStep>(layer, pack(layer, weights[0]), device);
  }
};

}  // namespace

std::unique_ptr<const CudaImplementation> make_split() { return std::make_unique<Split>(); }

}  // namespace warpweave::cuda::split
