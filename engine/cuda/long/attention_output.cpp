#include "cuda/long/attention_output.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/fp16_range.h"
#include "warpweave/tensor.h"

namespace warpweave::cuda::long_sequences {
namespace {

constexpr std::int64_t kMostPanels = 4;
constexpr std::int64_t kLeastLength = 128;  // at 64 two kernels take the same time

// Measured on an H200 for 8 heads: four groups 155 and 117 (lengths 384, 256), two blocks of two 160 and 124.
LongAttentionPlan plan_for(std::int64_t heads, std::int64_t head_pitch, std::int64_t length) {
  const auto panels = static_cast<int>(heads * head_pitch / 64);
  LongAttentionPlan plan = panels > 2 ? LongAttentionPlan{32, 4, 64, 7, 1} : narrow_heads_plan(length);
  plan.panels = panels;
  return plan;
}
constexpr bool fits(LongAttentionPlan plan) {
  plan.panels = kMostPanels;
  return plan.blocks * (plan.shared_bytes() + 1024) <= 228 * 1024;
}
static_assert(fits({32, 4, 64, 6, 1}) && fits({32, 3, 64, 6, 1}) && fits({32, 2, 64, 4, 2}) &&
              fits({32, 4, 64, 7, 1}));

}  // namespace

bool attention_can_project(std::int64_t heads, std::int64_t head_pitch) {
  return head_pitch == 32 && heads % 2 == 0 && heads * head_pitch <= 64 * kMostPanels;
}

std::optional<LongAttentionPlan> attention_output_plan(const AttentionShape& shape,
                                                       const plan::Conditions& conditions) {
  if (conditions.compute_capability != 90 || itemsize(storage_type(conditions.precision)) != 2) return {};
  if (!attention_can_project(shape.heads, shape.head_dim) || shape.length < kLeastLength) return {};
  LongAttentionPlan plan = plan_for(shape.heads, shape.head_dim, shape.length);
  plan.folded = shape.folded;
  return plan;
}

AttentionOutputWeights::AttentionOutputWeights(std::int64_t heads, std::int64_t head_pitch,
                                               std::span<const float> weight, std::span<const float> bias,
                                               Precision precision)
    : dim_(static_cast<int>(static_cast<std::int64_t>(weight.size()) / (heads * head_pitch))) {
  const LongAttentionPlan plan = plan_for(heads, head_pitch, 256);  // the packing is that of any length
  const int inner = static_cast<int>(heads * head_pitch);
  std::vector<float> panels(static_cast<std::size_t>(LongAttentionPlan::chunks(dim_)) * plan.panels *
                            (LongAttentionPlan::kPanelBytes / 2));
  std::vector<float> scale(static_cast<std::size_t>(dim_), 1.0f);
  for (int n = 0; n < dim_; ++n) {
    const float* from = weight.data() + static_cast<std::size_t>(n) * inner;
    const int exponent = exponent_taken_out({from, static_cast<std::size_t>(inner)}, precision);
    scale[static_cast<std::size_t>(n)] = std::ldexp(1.0f, exponent);
    for (int k = 0; k < inner; ++k)
      panels[static_cast<std::size_t>(plan.output_place(n, k))] = std::ldexp(from[k], -exponent);
  }
  panels_ = upload_operand(panels, precision);
  scale_ = upload(scale);
  bias_ = upload(bias);
}

kernels::long_attention::OutputParams AttentionOutputWeights::params(const void* residual,
                                                                     void* y) const noexcept {
  return {residual,
          y,
          panels_.data(),
          reinterpret_cast<const float*>(scale_.data()),
          reinterpret_cast<const float*>(bias_.data()),
          dim_};
}

}  // namespace warpweave::cuda::long_sequences
