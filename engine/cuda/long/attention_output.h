// Attention that ends with the output projection (kernels/long/attention_output.cuh): when, with which
// weights, and its launch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cuda/composed/attention.h"
#include "cuda/memory.h"

namespace warpweave::cuda::long_sequences {

// Whether the heads' results of a block's queries, and the registers, suffice; for any length.
bool attention_can_project(std::int64_t heads, std::int64_t head_pitch);
// Nothing where attention and projection are two kernels.
std::optional<LongAttentionPlan> attention_output_plan(const AttentionShape& shape,
                                                       const plan::Conditions& conditions);

// Weights of the output projection as the kernel reads them.
class AttentionOutputWeights {
 public:
  // `weight` [dim, heads head_pitch], `bias` [dim] or empty; in fp16 a power of two is taken out of a
  // channel's weights, which keeps them in range.
  AttentionOutputWeights(std::int64_t heads, std::int64_t head_pitch, std::span<const float> weight,
                         std::span<const float> bias, Precision precision);
  // With y and residual at the first cell of a slice.
  kernels::long_attention::OutputParams params(const void* residual, void* y) const noexcept;

 private:
  int dim_;
  DeviceBuffer panels_, scale_, bias_;
};

}  // namespace warpweave::cuda::long_sequences
