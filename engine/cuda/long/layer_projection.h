// A projection of a layer by the kernel that suits its size: long/project.cuh where W stays in shared memory,
// or long/project_wide.cuh where it streams.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "cuda/long/projection.h"
#include "cuda/long/wide_projection.h"

namespace warpweave::cuda::long_sequences {

class LayerProjection {
 public:
  // `weight` [n, k], `bias` [n] or empty. Takes a mask or none, whatever shape.masked says.
  LayerProjection(const ProjectionShape& shape, std::span<const float> weight, std::span<const float> bias,
                  Precision precision, const GpuDevice& device);
  // Everything of `run` but the weights; the mask may be null.
  void enqueue(cudaStream_t stream, WideRun run) const;

  static bool wide(const ProjectionShape& shape);
  static std::vector<KernelSpec> kernels(const ProjectionShape& shape, Precision precision);

 private:
  std::variant<TokenProjection, WideProjection> kernel_[2];  // without and with a mask
  DeviceBuffer weights_;
};

}  // namespace warpweave::cuda::long_sequences
