// q, k, v and attention of short sequences in one kernel (kernels/long/qkv_attention.cuh): when, and its launch.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cuda/family.h"
#include "long/qkv_attention_params.h"

namespace warpweave::cuda {

using QkvPlan = kernels::long_attention::QkvPlan;

// Nothing where product and attention are two kernels.
std::optional<QkvPlan> qkv_attention_plan(const QkvAttentionShape& shape, const plan::Conditions& conditions);
// Without asking whether it is worth it; nothing where it cannot be. Whether tokens are to stay if they can.
std::optional<QkvPlan> any_qkv_attention_plan(const QkvAttentionShape& shape, const plan::Conditions& conditions,
                                              bool hold = true);
KernelSpec qkv_attention_kernel(const QkvPlan& plan, Precision precision);
std::unique_ptr<const QkvAttentionOperation> make_qkv_attention(const QkvPlan& plan, const QkvAttentionShape& shape,
                                                                const ProjectionOperands& qkv, Precision precision,
                                                                const GpuDevice& device);

}  // namespace warpweave::cuda
