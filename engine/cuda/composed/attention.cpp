#include "cuda/composed/attention.h"

#include <algorithm>
#include <iterator>

#include "cuda/tensor_map.h"

namespace warpweave::cuda {
namespace {

// A plan that a multiprocessor of 9.0 has the shared memory and registers for.
constexpr LongAttentionPlan checked(const LongAttentionPlan& plan) {
  const bool fits =
      plan.blocks * (plan.shared_bytes() + 1024) <= 228 * 1024 &&
      plan.blocks * 128 * (plan.groups * plan.compute_registers() + LongAttentionPlan::kLoadRegisters) <=
          65536;
  return fits ? plan : throw "a plan that does not fit";
}

bool half_operands(Precision precision) { return itemsize(storage_type(precision)) == 2; }

// On any GPU, with and without a mask.
class AnyAttention final : public AttentionOperation {
 public:
  AnyAttention(const AttentionShape& shape, Precision precision, const GpuDevice& device)
      : tiles_(attention_tiles(shape, precision)),
        shared_(tiles_.shared_bytes(shape, itemsize(storage_type(precision)))),
        kernel_(device.kernels().get(attention_kernel(shape, precision))) {
    kernel_.allow(shared_);
  }

  void enqueue(cudaStream_t stream, const kernels::AttentionParams& params) const override {
    kernels::AttentionParams p = params;
    // The kernel multiplies -infinity by the scale.
    if (p.scale == 0.0f) p.scale = 1e-30f;
    const std::int64_t tiles = (p.length + tiles_.queries() - 1) / tiles_.queries();
    kernel_.launch(
        stream,
        {.blocks = p.sequences * p.heads * tiles, .threads = tiles_.warps * 32, .shared_bytes = shared_}, p);
  }

 private:
  AttentionTiles tiles_;
  std::size_t shared_;
  Kernel kernel_;
};

// A mask is known only at run time.
class EitherAttention final : public AttentionOperation {
 public:
  EitherAttention(std::unique_ptr<const AttentionOperation> without_mask,
                  std::unique_ptr<const AttentionOperation> with_mask)
      : without_mask_(std::move(without_mask)), with_mask_(std::move(with_mask)) {}
  void enqueue(cudaStream_t stream, const kernels::AttentionParams& p) const override {
    (p.mask ? with_mask_ : without_mask_)->enqueue(stream, p);
  }

 private:
  std::unique_ptr<const AttentionOperation> without_mask_, with_mask_;
};

}  // namespace

AttentionTiles attention_tiles(const AttentionShape& shape, Precision precision) {
  const bool half = half_operands(precision);
  // Wide heads have wide rows and accumulators; three stages of them must fit into 99 KiB.
  if (shape.head_dim > 128)
    return half ? AttentionTiles{shape.length <= 16 ? 1 : 4, 1, 16} : AttentionTiles{2, 1, 8};
  if (shape.length <= 16) return {1, 1, 16};
  if (!half && shape.head_dim > 64) return {4, 1, 16};
  if (shape.length <= 32) return {2, 1, 32};
  if (!half || shape.head_dim > 64) return {4, 1, 32};
  if (shape.length <= 64) return {4, 1, 64};
  return {4, 2, 64, true};
}

KernelSpec attention_kernel(const AttentionShape& shape, Precision precision) {
  const std::string scope = "warpweave::kernels::composed::";
  const std::string head = std::to_string(shape.head_dim);
  const std::string products =
      half_operands(precision)
          ? scope + "HalfProducts<" + device_type(precision) + ", " + head + ">"
          : scope + "FloatProducts<" + head + ", " + (precision == Precision::tf32 ? "true" : "false") + ">";
  const AttentionTiles t = attention_tiles(shape, precision);
  return {"composed/attention.cuh", scope + "attention<" + products + ", " + std::to_string(t.warps) + ", " +
                                        std::to_string(t.tiles) + ", " + std::to_string(t.keys) + ", " +
                                        (t.ahead ? "true, " : "false, ") + (shape.causal ? "true" : "false") +
                                        ">"};
}

// Measured on an H200: where queries fill the items, four groups are 3 % ahead of three and 6 % of two.
LongAttentionPlan narrow_heads_plan(std::int64_t length) {
  constexpr LongAttentionPlan plans[] = {checked({32, 4, 64, 6, 1}), checked({32, 3, 64, 6, 1}),
                                         checked({32, 2, 64, 4, 2})};
  const auto cost = [length](const LongAttentionPlan& plan) {
    const std::int64_t item = plan.groups * 64;
    return (length + item - 1) / item * item * (112 - 3 * plan.groups);
  };
  return *std::min_element(std::begin(plans), std::end(plans),
                           [&cost](const auto& a, const auto& b) { return cost(a) < cost(b); });
}

std::optional<LongAttentionPlan> long_attention_plan(const AttentionShape& shape,
                                                     const plan::Conditions& conditions) {
  if (conditions.compute_capability != 90 || !half_operands(conditions.precision)) return {};
  const auto with = [&shape](LongAttentionPlan plan) {
    plan.head = static_cast<int>(shape.head_dim), plan.folded = shape.folded;
    plan.short_start = starts_short(shape.length, shape.causal, plan.keys);
    return plan;
  };
  // Measured on an H200 from 40 to 1568; below, the other kernel has smaller tiles. {head, groups, keys,
  // stages, blocks}
  constexpr LongAttentionPlan four48 = checked({48, 4, 64, 4, 1}), four = checked({64, 4, 64, 4, 1}),
                              one = checked({64, 1, 64, 2, 3});
  if (shape.length <= 32) return {};
  if (shape.head_dim == 32) return with(narrow_heads_plan(shape.length));
  if (shape.head_dim == 48) return with(four48);
  if (shape.head_dim == 64) return with(shape.length <= 96 ? one : four);
  return {};
}

KernelSpec long_attention_kernel(const LongAttentionPlan& plan, bool causal, Precision precision) {
  std::string text = "warpweave::kernels::long_attention::attention<" + device_type(precision) + ", " +
                     std::to_string(plan.head);
  for (const int part : {plan.groups, plan.keys, plan.stages, plan.blocks, plan.panels})
    text += ", " + std::to_string(part);
  for (const bool part : {plan.folded, plan.short_start, causal}) text += part ? ", true" : ", false";
  return {"long/attention.cuh", text + ">"};
}

LongAttention::LongAttention(const LongAttentionPlan& plan, bool causal, Precision precision,
                             const GpuDevice& device)
    : device_(device),
      plan_(plan),
      causal_(causal),
      most_blocks_(std::int64_t{device.multiprocessors()} * plan.blocks),
      kernel_(device.kernels().get(long_attention_kernel(plan, causal, precision))) {
  prepare_tensor_maps();
  kernel_.allow(static_cast<std::size_t>(plan_.shared_bytes()));
}

void LongAttention::enqueue(cudaStream_t stream, const kernels::AttentionParams& params) const {
  enqueue(stream, params, {});
}

void LongAttention::enqueue(cudaStream_t stream, const kernels::AttentionParams& a,
                            const kernels::long_attention::OutputParams& output) const {
  const std::int64_t token = 3 * a.heads * plan_.head * 2;  // bytes
  const kernels::Sequences& t = a.tokens;
  kernels::long_attention::Params p{};
  p.attention = a, p.output = output;
  if (a.scale == 0.0f) p.attention.scale = 1e-30f;  // the kernel multiplies -infinity by it
  const std::int64_t inner = std::min(t.inner, a.sequences), outer = (a.sequences + t.inner - 1) / t.inner;
  // The stride of a single element may be anything, and longer than a map can tell.
  const auto stride = [token](std::int64_t extent, std::int64_t tokens) {
    return extent > 1 ? tokens * token : token;
  };
  encode_tensor_map(
      &p.qkv,
      {.address = a.qkv,
       .extent = {token / 2, a.length, inner, outer},
       .stride = {stride(a.length, t.step), stride(inner, t.inner_stride), stride(outer, t.outer_stride)},
       .box = {static_cast<std::uint32_t>(plan_.box_channels()), LongAttentionPlan::kBoxRows, 1, 1},
       .swizzle = plan_.row_bytes()});
  p.keep = device_.kept_share(a.sequences * a.length * token / 3);
  p.once = a.length <= 64;  // else several items, perhaps of several blocks
  p.tiles = a.sequences * LongAttentionPlan::query_tiles(a.length) * (plan_.panels ? 1 : a.heads);
  const std::int64_t items = (p.tiles + plan_.groups - 1) / plan_.groups;
  // Blocks stay and take items in turn, but where items differ in their number of keys the hardware deals
  // them out.
  const std::int64_t least = (items + LongAttentionPlan::kMostItems - 1) / LongAttentionPlan::kMostItems;
  const std::int64_t blocks = causal_ ? items : std::max(std::min<std::int64_t>(items, most_blocks_), least);
  kernel_.launch(stream,
                 {.blocks = blocks,
                  .threads = plan_.threads(),
                  .shared_bytes = static_cast<std::size_t>(plan_.shared_bytes()),
                  .overlap_previous = true},
                 p);
}

std::unique_ptr<const AttentionOperation> make_long_attention(const LongAttentionPlan& plan, bool causal,
                                                              Precision precision, const GpuDevice& device) {
  return std::make_unique<LongAttention>(plan, causal, precision, device);
}

std::vector<KernelSpec> attention_kernels(const AttentionShape& shape, const plan::Conditions& conditions) {
  std::vector<KernelSpec> list = {attention_kernel(shape, conditions.precision)};
  if (const auto plan = long_attention_plan(shape, conditions))
    list.push_back(long_attention_kernel(*plan, shape.causal, conditions.precision));
  return list;
}

std::unique_ptr<const AttentionOperation> make_any_attention(const AttentionShape& shape, Precision precision,
                                                             const GpuDevice& device) {
  return std::make_unique<AnyAttention>(shape, precision, device);
}

std::unique_ptr<const AttentionOperation> make_attention(const AttentionShape& shape, Precision precision,
                                                         const GpuDevice& device) {
  auto any = make_any_attention(shape, precision, device);
  const auto plan = long_attention_plan(shape, device.conditions(precision));
  if (!plan) return any;
  return std::make_unique<EitherAttention>(make_long_attention(*plan, shape.causal, precision, device),
                                           std::move(any));
}

}  // namespace warpweave::cuda
