// `split`: axial_attention in fp32 and tf32 on tensor cores, operands as sums of fp16 numbers
// (kernels/split/parts.cuh, docs/gpu.md).
#pragma once

#include <memory>

#include "cuda/step.h"

namespace warpweave::cuda::split {

std::unique_ptr<const CudaImplementation> make_split();

}  // namespace warpweave::cuda::split
