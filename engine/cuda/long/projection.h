// Choice, packing and launch of kernels/long/project.cuh.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cuda/compiler.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "graph/layer.h"
#include "long/project_params.h"
#include "long/project_plan.h"

namespace warpweave::cuda::long_sequences {

struct ProjectionShape {
  int k = 0, n = 0;  // channels of a token before and after, multiples of 8
  bool qkv = false;  // from the grid to a dense q | k | v, else from dense tokens to the grid
  graph::NormKind norm = graph::NormKind::none;
  bool biased = false, residual = false;
  bool masked = false;  // k and v of masked cells become zero
  int rope_head = 0;    // channels of a head whose pairs RoPE turns; 0: none
};

// Multiprocessor's shared memory of 9.0, and the widest token whose fragments fit a warp's registers.
inline constexpr int kSharedBytes = 232448, kMostChannels = 256;

// For at most kMostChannels inputs.
layout::ProjectPlan plan_of(const ProjectionShape& shape);
KernelSpec projection_kernel(const ProjectionShape& shape, const layout::ProjectPlan& plan,
                             Precision precision);

// Takes the mean out of every row of `weight` [n, k]: with a layer norm, whose result has no mean, the
// product is the same, and the kernel asks for it.
void centre_rows(std::span<float> weight, int k);

// `weight` [n, k], `bias` [n] or empty, as layout::ProjectPlan says. fp16 weights get a power of two per
// output channel, so that folded gains neither overflow nor lose digits.
std::vector<std::byte> pack_projection(const layout::ProjectPlan& plan, std::span<const float> weight,
                                       std::span<const float> bias, Precision precision);

// A projection whose packed weights are somewhere on the device.
class TokenProjection {
 public:
  TokenProjection() = default;
  TokenProjection(const ProjectionShape& shape, const layout::ProjectPlan& plan, Precision precision,
                  const GpuDevice& device);
  // Sets nothing in `params`.
  void enqueue(cudaStream_t stream, const kernels::ProjectParams& params) const;

 private:
  layout::ProjectPlan plan_{};
  int most_blocks_ = 0;  // of one slice, as many as run at a time
  Kernel kernel_;
};

}  // namespace warpweave::cuda::long_sequences
