#include "cuda/composed/wide_layer.h"

#include <algorithm>
#include <array>

#include "cuda/composed/wide_pack.h"
#include "cuda/memory.h"
#include "cuda/tensor_map.h"
#include "layout/norm_plan.h"

namespace warpweave::cuda {
namespace {

namespace device_side = kernels::long_attention;

constexpr std::int64_t kLeastChannels = 264;  // up to 256 the long family has its own
constexpr std::int64_t kMostChannels = 2048;  // that a warp's registers hold (composed/norm.cuh)

bool half_operands(Precision precision) { return itemsize(storage_type(precision)) == 2; }

// Whether the tokens' gains have to be found ahead.
bool needs_gains(const WideShape& shape) { return shape.norm != graph::NormKind::none; }

// Tokens, by their places in two grids.
struct Site {
  kernels::Sequences from, to;
  std::int64_t sequences, length;
};
// In the order of memory: the cells of a slice, and dense.
Site cells_to_dense(const kernels::Cells& cells, std::int64_t tokens) {
  const std::int64_t rows = cells.columns == cells.pitch ? 1 : tokens / cells.columns, length = tokens / rows;
  return {{rows, 0, cells.pitch, 1}, {rows, 0, length, 1}, rows, length};
}
Site sequences_of(const WideRun& run) {
  Site s{run.grid_sequences, run.token_sequences, run.sequences, run.length};
  // Rows of several samples are one row of sequences.
  const auto even = [](const kernels::Sequences& q) { return q.outer_stride == q.inner * q.inner_stride; };
  if (even(s.from) && even(s.to))
    s.from.inner = s.to.inner = std::max<std::int64_t>(s.from.inner, run.sequences);
  return s;
}

// How many elements of a sequence an item has, as a power of two: as leave the fewest rows to padding.
int slot_bits(std::int64_t length, std::int64_t sequences) {
  int best = 7;
  std::int64_t least = 0;
  for (int bits = 7; bits >= 0; --bits) {
    const std::int64_t elements = std::int64_t{1} << bits, beside = WidePlan::kTokens / elements;
    const std::int64_t items = (length + elements - 1) / elements * ((sequences + beside - 1) / beside);
    if (bits == 7 || items < least) least = items, best = bits;
  }
  return best;
}

// Weights on the device.
struct Matrix {
  std::int64_t rows, channels;
  float unit;
  DeviceBuffer weight, bias;
};

// One of the kernels with its weights.
class WideKernel {
 public:
  WideKernel(const WidePlan& plan, const Matrix& matrix, std::int64_t heads, Precision precision,
             const GpuDevice& device)
      : device_(device), plan_(plan), kernel_(device.kernels().get(wide_kernel(plan, precision))) {
    prepare_tensor_maps();
    kernel_.allow(static_cast<std::size_t>(plan.shared_bytes()));
    p_.bias = reinterpret_cast<const float*>(matrix.bias.data());
    p_.rows = static_cast<int>(matrix.rows), p_.dim = static_cast<int>(matrix.channels);
    p_.unit = matrix.unit;
    p_.columns = static_cast<int>(attends() ? heads : (matrix.rows + plan.rows() - 1) / plan.rows());
    const std::int64_t row = matrix.channels * 2, head = plan.head;  // bytes
    TensorMapShape map{.address = matrix.weight.data(), .swizzle = 128};
    if (attends()) {
      map.extent = {matrix.channels, head, heads, 3}, map.stride = {row, row * head, row * head * heads};
      map.box = {64, static_cast<std::uint32_t>(head), 1, 3};
    } else {
      map.extent = {matrix.channels, matrix.rows, 1, 1}, map.stride = {row, row, row};
      map.box = {64, static_cast<std::uint32_t>(plan.rows()), 1, 1};
    }
    encode_tensor_map(&p_.weight, map);
  }

  struct Run {
    const void* x = nullptr;
    void* out = nullptr;
    const void* gains = nullptr;  // null: 1
    float scale = 1;
  };
  void enqueue(cudaStream_t stream, const Site& site, const Run& run) const {
    device_side::WideParams p = p_;
    const std::int64_t inner = std::min<std::int64_t>(site.to.inner, site.sequences),
                       outer = (site.sequences + inner - 1) / inner, width = attends() ? p.rows / 3 : p.rows;
    p.slot_bits = attends() ? 0 : slot_bits(site.length, inner);
    const std::int64_t elements = attends() ? plan_.slot : std::int64_t{1} << p.slot_bits,
                       beside = WidePlan::kTokens / elements, stored = std::min<std::int64_t>(elements, 16);
    const auto map = [&](device_side::TensorMap& to, const void* address, std::int64_t channels,
                         const kernels::Sequences& at, std::array<std::int64_t, 3> box) {
      // The stride of a single element may be anything, and longer than a map can tell.
      const auto stride = [channels](std::int64_t extent, std::int64_t cells) {
        return (extent > 1 ? cells : 1) * channels * 2;
      };
      encode_tensor_map(&to, {.address = address,
                              .extent = {channels, site.length, inner, outer},
                              .stride = {stride(site.length, at.step), stride(inner, at.inner_stride),
                                         stride(outer, at.outer_stride)},
                              .box = {static_cast<std::uint32_t>(box[0]), static_cast<std::uint32_t>(box[1]),
                                      static_cast<std::uint32_t>(box[2]), 1},
                              .swizzle = 128});
    };
    map(p.x, run.x, p.dim, site.from, {64, elements, beside});
    map(p.out, run.out, width, site.to, {plan_.head, stored, 16 / stored});
    p.gains = static_cast<const float*>(run.gains);
    p.tokens = site.to;
    p.length = static_cast<int>(site.length), p.inner = static_cast<int>(inner);
    p.along = static_cast<int>((site.length + elements - 1) / elements);
    p.across = static_cast<int>((inner + beside - 1) / beside);
    p.items = static_cast<int>(std::int64_t{p.along} * p.across * outer * p.columns);
    const auto divisor = [](int n) { return layout::Divisor::of(static_cast<unsigned>(n)); };
    p.by_columns = divisor(p.columns), p.by_along = divisor(p.along), p.by_across = divisor(p.across);
    p.scale = run.scale == 0.0f ? 1e-30f : run.scale;  // the kernel multiplies -infinity by it
    p.keep = device_.kept_share(site.sequences * site.length * width * 2);
    kernel_.launch(stream,
                   {.blocks = std::min(p.items, device_.multiprocessors()),
                    .threads = WidePlan::kThreads,
                    .shared_bytes = static_cast<std::size_t>(plan_.shared_bytes()),
                    .overlap_previous = true},
                   p);
  }

 private:
  bool attends() const noexcept { return plan_.slot > 0; }

  const GpuDevice& device_;
  WidePlan plan_;
  Kernel kernel_;
  device_side::WideParams p_{};
};

// Gains of tokens, then norm and q, k, v, with or without attention.
class WideQkv final : public WideOperation {
 public:
  WideQkv(const WidePlan& plan, const WideShape& shape, const Matrix& matrix, float eps, Precision precision,
          const GpuDevice& device)
      : kernel_(plan, matrix, shape.heads, precision, device),
        attends_(plan.slot > 0),
        dim_(shape.dim),
        eps_(eps) {
    if (!needs_gains(shape)) return;
    gains_ = device.kernels().get(gains_kernel(shape, precision));
    const auto dim = static_cast<int>(dim_);
    gain_tokens_ = layout::NormPlan{dim, dim, 2}.tokens();
    most_gain_blocks_ = device.multiprocessors() * gains_.resident_blocks(128, 0);
  }
  bool copies() const noexcept override { return most_gain_blocks_ > 0; }
  void enqueue(cudaStream_t stream, const WideRun& run) const override {
    if (most_gain_blocks_ > 0) find_gains(stream, run);
    kernel_.enqueue(stream, attends_ ? sequences_of(run) : cells_to_dense(run.cells, run.tokens),
                    {.x = static_cast<const std::byte*>(run.x) + run.cells.first * dim_ * 2,
                     .out = run.out,
                     .gains = most_gain_blocks_ > 0 ? run.gains : nullptr,
                     .scale = run.scale});
  }

 private:
  void find_gains(cudaStream_t stream, const WideRun& run) const {
    kernels::NormParams n{run.x,     run.gains,  run.copy, nullptr, nullptr,
                          run.cells, run.tokens, dim_,     dim_,    eps_};
    n.keep = 1;
    gains_.launch(
        stream,
        {.blocks = std::min<std::int64_t>((run.tokens + gain_tokens_ - 1) / gain_tokens_, most_gain_blocks_),
         .threads = 128,
         .overlap_previous = true},
        n);
  }

  WideKernel kernel_;
  bool attends_;
  std::int64_t dim_;
  float eps_;
  Kernel gains_;
  std::int64_t gain_tokens_ = 1, most_gain_blocks_ = 0;  // at a time
};

class PackedWideLayer final : public WideLayer {
 public:
  PackedWideLayer(const WideShape& shape, const WideWeights& weights, Precision precision,
                  const GpuDevice& device)
      : shape_(shape), precision_(precision), device_(device), eps_(weights.eps) {
    const PackedProjection packed = pack_qkv(shape, weights, precision);
    qkv_ = {static_cast<std::int64_t>(packed.bias.size()), shape.dim, packed.unit,
            upload_operand(packed.weight, precision), upload(packed.bias)};
  }

  std::int64_t gain_bytes_per_token() const noexcept override { return needs_gains(shape_) ? 4 : 0; }
  std::unique_ptr<const WideOperation> store() const override { return qkv(store_plan(shape_)); }
  std::unique_ptr<const WideOperation> attention(const AttentionShape& attention,
                                                 std::int64_t neighbours) const override {
    const auto plan = wide_attention_plan(shape_, attention, neighbours);
    return plan ? qkv(*plan) : nullptr;
  }
  std::unique_ptr<const WideOperation> qkv(const WidePlan& plan) const {
    return std::make_unique<WideQkv>(plan, shape_, qkv_, eps_, precision_, device_);
  }

 private:
  WideShape shape_;
  Precision precision_;
  const GpuDevice& device_;
  float eps_;
  Matrix qkv_{};
};

}  // namespace

bool takes_wide_layer(const WideShape& shape, const plan::Conditions& conditions) {
  return conditions.compute_capability == 90 && half_operands(conditions.precision) &&
         shape.dim >= kLeastChannels && shape.dim <= kMostChannels && shape.dim % 8 == 0;
}

// As wide as leaves the fewest rows to padding.
WidePlan store_plan(const WideShape& shape) {
  const std::int64_t rows = 3 * shape.heads * shape.head_dim;
  const auto padded = [rows](int head) { return (rows + 3 * head - 1) / (3 * head) * (3 * head); };
  return {padded(48) < padded(64) ? 48 : 64, 0};
}

std::optional<WidePlan> any_wide_attention_plan(const WideShape& shape, const AttentionShape& attention) {
  if ((shape.head_dim != 48 && shape.head_dim != 64) || attention.length > WidePlan::kTokens ||
      attention.causal)
    return {};
  WidePlan plan{static_cast<int>(shape.head_dim), 16};
  while (plan.slot < attention.length) plan.slot *= 2;
  return plan;
}

std::optional<WidePlan> wide_attention_plan(const WideShape& shape, const AttentionShape& attention,
                                            std::int64_t neighbours) {
  const auto plan = any_wide_attention_plan(shape, attention);
  if (!plan) return {};
  // The share of an item's rows that are tokens.
  const std::int64_t items = (neighbours + plan->sequences() - 1) / plan->sequences();
  const double filled =
      static_cast<double>(neighbours * attention.length) / static_cast<double>(items * WidePlan::kTokens);
  // Padding costs products; what is spared is a kernel, and writing and reading q, k and v. Measured on an
  // H200 at 768 channels and three quarters filled (docs/long.md).
  return 1 / filled - 1 < 260.0 / static_cast<double>(shape.dim) ? plan : std::nullopt;
}

KernelSpec wide_kernel(const WidePlan& plan, Precision precision) {
  const std::string form = device_type(precision) + ", " + std::to_string(plan.head),
                    scope = "warpweave::kernels::long_attention::";
  if (plan.slot == 0) return {"long/wide_store.cuh", scope + "wide_store<" + form + ">"};
  return {"long/wide_attention.cuh",
          scope + "wide_attention<" + form + ", " + std::to_string(plan.slot) + ">"};
}

KernelSpec gains_kernel(const WideShape& shape, Precision precision) {
  return {"composed/norm.cuh", "warpweave::kernels::composed::gains<" + device_type(precision) + ", " +
                                   device_norm(shape.norm) + ", " + std::to_string(shape.dim) + ">"};
}

std::vector<KernelSpec> wide_layer_kernels(const WideShape& shape, const AttentionShape* attention,
                                           std::int64_t neighbours, Precision precision) {
  std::vector<WidePlan> plans = {store_plan(shape)};
  if (const auto plan = attention ? wide_attention_plan(shape, *attention, neighbours) : std::nullopt)
    plans.push_back(*plan);
  std::vector<KernelSpec> list;
  for (const WidePlan& plan : plans) list.push_back(wide_kernel(plan, precision));
  if (needs_gains(shape)) list.push_back(gains_kernel(shape, precision));
  return list;
}

std::unique_ptr<const WideLayer> make_wide_layer(const WideShape& shape, const WideWeights& weights,
                                                 Precision precision, const GpuDevice& device) {
  return std::make_unique<PackedWideLayer>(shape, weights, precision, device);
}

std::unique_ptr<const WideOperation> make_wide_operation(const WideLayer& of, const WidePlan& plan) {
  return dynamic_cast<const PackedWideLayer&>(of).qkv(plan);
}

}  // namespace warpweave::cuda
