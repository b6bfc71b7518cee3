// Attention of q, k and v in parts. Of two parts (fp32): kernels/composed/attention.cuh with
// split/products.cuh. Of one (tf32) they are plain fp16, and the kernels for fp16 take them: the same, or the
// one of 9.0.
#pragma once

#include <memory>
#include <vector>

#include "cuda/family.h"

namespace warpweave::cuda::split {

std::unique_ptr<const AttentionOperation> make_attention(const AttentionShape& shape, int parts,
                                                         const GpuDevice& device);
std::vector<KernelSpec> attention_kernels(const AttentionShape& shape, int parts,
                                          const plan::Conditions& conditions);

}  // namespace warpweave::cuda::split
