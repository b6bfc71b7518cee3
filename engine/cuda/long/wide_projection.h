// Choice, packing and launch of kernels/long/project_wide.cuh.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/compiler.h"
#include "cuda/device.h"
#include "cuda/long/projection.h"
#include "long/project_wide_params.h"
#include "long/project_wide_plan.h"

namespace warpweave::cuda::long_sequences {

// The widest tokens that were tested.
inline constexpr int kMostWideChannels = 4096;

layout::WidePlan wide_plan_of(const ProjectionShape& shape);
KernelSpec wide_kernel(const ProjectionShape& shape, const layout::WidePlan& plan, Precision precision);

// `weight` [n, k], `bias` [n] or empty, as layout::WidePlan says. fp16 weights get a power of two per output
// channel. Where the norm subtracts the mean, so do the rows of the weight.
std::vector<std::byte> pack_wide(const ProjectionShape& shape, const layout::WidePlan& plan,
                                 std::span<const float> weight, std::span<const float> bias,
                                 Precision precision);

struct WideRun {
  const void* x = nullptr;  // the grid where the shape is qkv, else dense
  void* y = nullptr;        // the other way round
  const void* residual = nullptr;
  const unsigned char* mask = nullptr;
  const void* weights = nullptr;  // packed, on the device
  const float* rotation = nullptr;
  kernels::Cells cells{};
  std::int64_t tokens = 0;                        // at most 2^24
  std::int64_t position_divisor = 1, length = 1;  // position of token t: t / position_divisor % length
  float eps = 0;
};

// A wide projection whose packed weights are somewhere on the device.
class WideProjection {
 public:
  WideProjection() = default;
  WideProjection(const ProjectionShape& shape, const layout::WidePlan& plan, Precision precision,
                 const GpuDevice& device);
  void enqueue(cudaStream_t stream, const WideRun& run) const;

 private:
  ProjectionShape shape_;
  layout::WidePlan plan_{};
  std::int64_t most_blocks_ = 0;  // as many as run at a time
  Kernel kernel_;
};

}  // namespace warpweave::cuda::long_sequences
