// A projection as a cuBLASLt product, or by an own kernel where channels are few (small_product.h). With own
// kernels for what its epilogue cannot do: activations other than relu, and outputs whose channels are no
// multiple of 16 bytes (those go through padded float32 scratch).
#pragma once

#include <memory>
#include <span>

#include "cuda/family.h"

namespace warpweave::cuda {

std::vector<KernelSpec> composed_projection_kernels(const ProjectionShape& shape, Precision precision);
std::unique_ptr<const Projection> make_composed_projection(const ProjectionShape& shape,
                                                           std::span<const float> weight,
                                                           std::span<const float> bias, Precision precision,
                                                           const GpuDevice& device);

// Elements in 16 bytes of the stored type.
std::int64_t elements_of_16_bytes(Precision precision);

}  // namespace warpweave::cuda
