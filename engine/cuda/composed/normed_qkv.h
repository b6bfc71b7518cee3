// Norm and q, k, v of wide tokens, with or without attention of short sequences, in one kernel on compute
// capability 9.0 (kernels/long/qkv_store.cuh, qkv_attention.cuh): when, with which weights, and their launch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cuda/family.h"
#include "long/qkv_params.h"

namespace warpweave::cuda {

using QkvPlan = kernels::long_attention::QkvPlan;

// Whether there are kernels for such a layer.
bool takes_normed_qkv(const NormedQkvShape& shape, const plan::Conditions& conditions);
QkvPlan qkv_store_plan(const NormedQkvShape& shape);
// Nothing where attention is a kernel of its own: it has to be, or it is faster.
std::optional<QkvPlan> qkv_attention_plan(const NormedQkvShape& shape, const AttentionShape& attention,
                                          std::int64_t neighbours);
// Without asking what is faster.
std::optional<QkvPlan> any_qkv_attention_plan(const NormedQkvShape& shape, const AttentionShape& attention);
KernelSpec qkv_kernel(const QkvPlan& plan, Precision precision);
// One over the deviations of tokens, which those kernels ask for.
KernelSpec gains_kernel(const NormedQkvShape& shape, Precision precision);

struct PackedQkv {
  std::vector<float>
      weight;  // [rows, dim], with the norm's gain, as `precision` has it; in fp16 divided by `unit`
  std::vector<float> bias;  // with the norm's
  float unit = 1;           // a power of two
};
// With a layer norm, the rows sum up to zero.
PackedQkv pack_normed_qkv(const NormedQkvShape& shape, const NormedQkvWeights& weights, Precision precision);

std::vector<KernelSpec> normed_qkv_kernels(const NormedQkvShape& shape, const AttentionShape& attention,
                                           std::int64_t neighbours, Precision precision);
std::unique_ptr<const NormedQkv> make_normed_qkv(const NormedQkvShape& shape, const NormedQkvWeights& weights,
                                                 Precision precision, const GpuDevice& device);
// With one of the plans.
std::unique_ptr<const NormedQkvOperation> make_qkv_operation(const NormedQkv& of, const QkvPlan& plan);

}  // namespace warpweave::cuda
