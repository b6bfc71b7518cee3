#include "cuda/long/layer_projection.h"

namespace warpweave::cuda::long_sequences {
namespace {

ProjectionShape with_mask(ProjectionShape shape, bool masked) {
  shape.masked = masked && shape.qkv;
  return shape;
}

}  // namespace

bool LayerProjection::wide(const ProjectionShape& shape) { return shape.k > kMostChannels; }

LayerProjection::LayerProjection(const ProjectionShape& shape, std::span<const float> weight,
                                 std::span<const float> bias, Precision precision, const GpuDevice& device) {
  if (wide(shape))
    weights_ = upload_bytes(pack_wide(shape, wide_plan_of(shape), weight, bias, precision), "weights");
  else
    weights_ = upload_bytes(pack_projection(plan_of(shape), weight, bias, precision), "weights");
  for (const bool masked : {false, true}) {
    const ProjectionShape s = with_mask(shape, masked);
    if (wide(shape))
      kernel_[masked] = WideProjection(s, wide_plan_of(shape), precision, device);
    else
      kernel_[masked] = TokenProjection(s, plan_of(shape), precision, device);
  }
}

void LayerProjection::enqueue(cudaStream_t stream, WideRun run) const {
  run.weights = weights_.data();
  const auto& kernel = kernel_[run.mask != nullptr];
  if (const auto* wide = std::get_if<WideProjection>(&kernel)) {
    wide->enqueue(stream, run);
    return;
  }
  kernels::ProjectParams p{};
  p.x = run.x, p.y = run.y, p.residual = run.residual, p.mask = run.mask, p.weights = run.weights;
  p.rotation = run.rotation, p.cells = run.cells, p.tokens = static_cast<int>(run.tokens), p.eps = run.eps;
  p.position_divisor = static_cast<int>(run.position_divisor), p.length = static_cast<int>(run.length);
  std::get<TokenProjection>(kernel).enqueue(stream, p);
}

std::vector<KernelSpec> LayerProjection::kernels(const ProjectionShape& shape, Precision precision) {
  std::vector<KernelSpec> list;
  for (const bool masked : {false, true}) {
    if (masked && !shape.qkv) break;
    const ProjectionShape s = with_mask(shape, masked);
    list.push_back(wide(shape) ? wide_kernel(s, wide_plan_of(shape), precision)
                               : projection_kernel(s, plan_of(shape), precision));
  }
  return list;
}

}  // namespace warpweave::cuda::long_sequences
