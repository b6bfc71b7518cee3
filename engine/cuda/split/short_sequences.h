// Specialisation and launch of kernels/split/short_sequences.cuh and warp_kernels.cuh: a layer whose weights
// fit into shared memory beside a few short sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/split/uploaded.h"
#include "cuda/step.h"

namespace warpweave::cuda::split {

inline constexpr std::int64_t kMostSequences = std::int64_t{1} << 30;  // of a launch

// Whether a GPU whose blocks get `shared_memory` bytes can run the layer on sequences of this length.
bool takes_short(const graph::AxialAttention& layer, std::int64_t length, int parts,
                 std::int64_t shared_memory);

std::vector<KernelSpec> short_kernels(const graph::AxialAttention& layer, std::int64_t length, int parts,
                                      std::int64_t shared_memory);

// Those that a session of this size launches.
std::vector<KernelSpec> short_kernels_of_session(const graph::AxialAttention& layer,
                                                 const graph::CellShape& sample, int parts,
                                                 std::int64_t shared_memory, const SessionSize& size);

// `layer` and `weights` outlive the result.
std::unique_ptr<const BoundStep> bind_short(const graph::AxialAttention& layer, const UploadedLayer& weights,
                                            int parts, const StepShape& shape, const GpuDevice& device);

}  // namespace warpweave::cuda::split
