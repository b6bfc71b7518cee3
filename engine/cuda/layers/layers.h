// How each layer type runs as a sequence of a family's operations. One file per layer type, one line in
// registry.cpp.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "cuda/family.h"
#include "cuda/memory.h"
#include "cuda/step.h"

namespace warpweave::cuda {

struct BuildContext {
  const Family& family;
  Precision precision;
  const GpuDevice& device;
};

struct LayerBuilder {
  std::string_view type;  // of the graph's layer
  std::vector<ProjectionShape> (*projections)(const Family&, const graph::Layer&, Precision);
  std::vector<KernelSpec> (*kernels)(const Family&, const plan::LayerProblem&, const plan::Conditions&);
  // `family` and `device` of the context outlive the step.
  std::unique_ptr<const Step> (*build)(const BuildContext&, const graph::Layer&,
                                       const weights::LayerWeights&);
};

std::span<const LayerBuilder> layer_builders();

extern const LayerBuilder kAxialAttention;
extern const LayerBuilder kFeedForward;
extern const LayerBuilder kNorm;
extern const LayerBuilder kLinear;
extern const LayerBuilder kPatchEmbed;
extern const LayerBuilder kPatchUnembed;
extern const LayerBuilder kPositionEmbedding;

// ---- shared by the layers

// A weight [n, k] with zeros added up to [n_pitch, k_pitch]; null gives an empty vector.
std::vector<float> padded(const float* weight, std::int64_t n, std::int64_t k, std::int64_t n_pitch,
                          std::int64_t k_pitch);

// A norm with its weights.
class NormPart {
 public:
  NormPart(const BuildContext& context, const graph::Norm& norm, std::int64_t dim,
           const weights::LayerWeights& weights, std::int64_t pitch, bool operand = true);
  // From cells of the grid x to dense tokens of `pitch` elements. `copy`, where not null, is a grid that gets
  // the same cells as they are.
  void enqueue(cudaStream_t stream, const void* x, void* y, void* copy, const kernels::Cells& cells,
               std::int64_t tokens) const;

 private:
  NormShape shape_;
  float eps_;
  DeviceBuffer weight_, bias_;
  std::unique_ptr<const NormOperation> operation_;
};

KernelSpec elementwise_kernel(std::string_view name, const std::string& arguments);
std::vector<KernelSpec> joined(std::initializer_list<std::vector<KernelSpec>> lists);

// The grid that a projection with residual adds to: y itself, into which x is copied, by the norm as a rule,
// where they differ. The sum is thus always in place, which matrix-product libraries do with other kernels,
// and other bits, than a sum from elsewhere.
inline void* residual_copy(bool residual, const StepRun& run) {
  return residual && run.x != run.y ? run.y : nullptr;
}

// All tokens in a row, dense: the cells of a matrix in the workspace.
inline kernels::Cells dense(std::int64_t tokens) { return {0, tokens, tokens}; }

}  // namespace warpweave::cuda
