// Norm and q, k, v of layers of more than 256 channels, with or without attention of short sequences, in one
// kernel on compute capability 9.0 (kernels/long/wide_store.cuh, wide_attention.cuh): when, and their
// launch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/family.h"
#include "long/wide_params.h"

namespace warpweave::cuda {

using WidePlan = kernels::long_attention::WidePlan;

// Whether there are kernels for such a layer.
bool takes_wide_layer(const WideShape& shape, const plan::Conditions& conditions);
WidePlan store_plan(const WideShape& shape);
// Nothing where attention is a kernel of its own: it has to be, or it is faster.
std::optional<WidePlan> wide_attention_plan(const WideShape& shape, const AttentionShape& attention,
                                            std::int64_t neighbours);
// Without asking what is faster; for harnesses.
std::optional<WidePlan> any_wide_attention_plan(const WideShape& shape, const AttentionShape& attention);
KernelSpec wide_kernel(const WidePlan& plan, Precision precision);
// One over the deviations of tokens, which those kernels ask for.
KernelSpec gains_kernel(const WideShape& shape, Precision precision);

std::vector<KernelSpec> wide_layer_kernels(const WideShape& shape, const AttentionShape* attention,
                                           std::int64_t neighbours, Precision precision);
std::unique_ptr<const WideLayer> make_wide_layer(const WideShape& shape, const WideWeights& weights,
                                                 Precision precision, const GpuDevice& device);
// With any plan; for harnesses.
std::unique_ptr<const WideOperation> make_wide_operation(const WideLayer& of, const WidePlan& plan);

}  // namespace warpweave::cuda
