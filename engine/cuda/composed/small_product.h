// A projection of few channels in bf16 or fp16 by an own kernel (kernels/composed/small_product.cuh), with
// any activation in it. It spares small models the tenth of a second that cuBLASLt takes to open and to set
// itself up.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "cuda/family.h"

namespace warpweave::cuda {

// The kernel, where such a projection takes this shape: at most 2^16 weights, both sides multiples of 8.
std::optional<KernelSpec> small_product_kernel(const ProjectionShape& shape, Precision precision);
std::unique_ptr<const Projection> make_small_product(const ProjectionShape& shape,
                                                     std::span<const float> weight,
                                                     std::span<const float> bias, Precision precision,
                                                     const GpuDevice& device);

}  // namespace warpweave::cuda
