#include "cuda/composed/qkv_attention.h"

#include <algorithm>

#include "cuda/tensor_map.h"

namespace warpweave::cuda {
namespace {

constexpr int kLeastStages = 4;

class FusedQkvAttention final : public QkvAttentionOperation {
 public:
  FusedQkvAttention(const QkvPlan& plan, const QkvAttentionShape& shape, const ProjectionOperands& qkv,
                    Precision precision, const GpuDevice& device)
      : device_(device),
        plan_(plan),
        heads_(shape.attention.heads),
        length_(shape.attention.length),
        k_(shape.k),
        kernel_(device.kernels().get(qkv_attention_kernel(plan, precision))) {
    prepare_tensor_maps();
    kernel_.allow(static_cast<std::size_t>(plan.shared_bytes()));
    const std::int64_t row = k_ * 2;  // bytes
    encode_tensor_map(&weight_, {.address = qkv.weight,
                                 .extent = {k_, plan.head, heads_, 3},
                                 .stride = {row, row * plan.head, row * plan.head * heads_},
                                 .box = {64, static_cast<std::uint32_t>(plan.head), 1, 3},
                                 .swizzle = 128});
    bias_ = qkv.bias;
  }

  void enqueue(cudaStream_t stream, const QkvAttentionRun& run) const override {
    kernels::long_attention::QkvParams p{};
    p.weight = weight_, p.bias = bias_, p.o = run.o;
    p.tokens = run.tokens, p.sequences = run.sequences;
    kernels::Sequences& t = p.tokens;
    // Rows of several samples are one row of sequences.
    if (t.outer_stride == t.inner * t.inner_stride) t.inner = std::max<std::int64_t>(t.inner, run.sequences);
    const std::int64_t inner = std::min<std::int64_t>(t.inner, run.sequences), outer = (run.sequences + t.inner - 1) / t.inner,
                       token = k_ * 2;
    // The stride of a single element may be anything, and longer than a map can tell.
    const auto stride = [token](std::int64_t extent, std::int64_t tokens) {
      return extent > 1 ? tokens * token : token;
    };
    encode_tensor_map(
        &p.x, {.address = run.x,
               .extent = {k_, length_, inner, outer},
               .stride = {stride(length_, t.step), stride(inner, t.inner_stride), stride(outer, t.outer_stride)},
               .box = {64, static_cast<std::uint32_t>(plan_.slot), static_cast<std::uint32_t>(plan_.sequences()), 1},
               .swizzle = 128});
    p.length = static_cast<int>(length_), p.heads = static_cast<int>(heads_);
    p.chunks = static_cast<int>((k_ + 63) / 64);
    p.scale = run.scale == 0.0f ? 1e-30f : run.scale;  // the kernel multiplies -infinity by it
    p.keep = device_.kept_share(run.sequences * length_ * heads_ * plan_.head * 2);
    const std::int64_t items = (inner + plan_.sequences() - 1) / plan_.sequences() * outer * heads_;
    kernel_.launch(stream,
                   {.blocks = std::min<std::int64_t>(items, device_.multiprocessors()),
                    .threads = QkvPlan::kThreads,
                    .shared_bytes = static_cast<std::size_t>(plan_.shared_bytes()),
                    .overlap_previous = true},
                   p);
  }

 private:
  const GpuDevice& device_;
  QkvPlan plan_;
  std::int64_t heads_, length_, k_;
  const void* bias_;
  kernels::long_attention::TensorMap weight_;
  Kernel kernel_;
};

}  // namespace

std::optional<QkvPlan> any_qkv_attention_plan(const QkvAttentionShape& shape, const plan::Conditions& conditions,
                                              bool hold) {
  const AttentionShape& a = shape.attention;
  if (conditions.compute_capability != 90 || itemsize(storage_type(conditions.precision)) != 2) return {};
  if ((a.head_dim != 48 && a.head_dim != 64) || a.length > QkvPlan::kTokens || a.causal) return {};
  QkvPlan plan{static_cast<int>(a.head_dim), 16};
  while (plan.slot < a.length) plan.slot *= 2;
  const std::int64_t chunks = (shape.k + 63) / 64;
  if (hold && chunks <= QkvPlan::kMostHeld) {
    plan.held = static_cast<int>(chunks);
    if (plan.stages() < kLeastStages) plan.held = 0;
  }
  return plan;
}

std::optional<QkvPlan> qkv_attention_plan(const QkvAttentionShape& shape, const plan::Conditions& conditions) {
  const auto plan = any_qkv_attention_plan(shape, conditions);
  if (!plan) return {};
  // The share of an item's rows that are tokens.
  const std::int64_t items = (shape.neighbours + plan->sequences() - 1) / plan->sequences();
  const double filled = static_cast<double>(shape.neighbours * shape.attention.length) /
                        static_cast<double>(items * QkvPlan::kTokens);
  return 1 / filled - 1 < 200.0 / static_cast<double>(shape.k) ? plan : std::nullopt;
}

KernelSpec qkv_attention_kernel(const QkvPlan& plan, Precision precision) {
  return {"long/qkv_attention.cuh", "warpweave::kernels::long_attention::qkv_attention<" + device_type(precision) +
                                        ", " + std::to_string(plan.head) + ", " + std::to_string(plan.slot) + ", " +
                                        std::to_string(plan.held) + ">"};
}

std::unique_ptr<const QkvAttentionOperation> make_qkv_attention(const QkvPlan& plan, const QkvAttentionShape& shape,
                                                                const ProjectionOperands& qkv, Precision precision,
                                                                const GpuDevice& device) {
  return std::make_unique<FusedQkvAttention>(plan, shape, qkv, precision, device);
}

}  // namespace warpweave::cuda
