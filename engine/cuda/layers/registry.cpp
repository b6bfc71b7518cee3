#include <algorithm>
#include <array>

#include "cuda/layers/layers.h"

namespace warpweave::cuda {

std::span<const LayerBuilder> layer_builders() {
  static const std::array builders = {kAxialAttention, kFeedForward,      kNorm, kLinear, kPatchEmbed,
                                      kPatchUnembed,   kPositionEmbedding};
  return builders;
}

std::vector<float> padded(const float* weight, std::int64_t n, std::int64_t k, std::int64_t n_pitch,
                          std::int64_t k_pitch) {
  std::vector<float> result;
  if (!weight) return result;
  result.assign(static_cast<std::size_t>(n_pitch * k_pitch), 0.0f);
  for (std::int64_t i = 0; i < n; ++i) std::copy_n(weight + i * k, k, result.begin() + i * k_pitch);
  return result;
}

KernelSpec elementwise_kernel(std::string_view name, const std::string& arguments) {
  return {"common/elementwise.cuh", "warpweave::kernels::" + std::string(name) + "<" + arguments + ">"};
}

std::vector<KernelSpec> joined(std::initializer_list<std::vector<KernelSpec>> lists) {
  std::vector<KernelSpec> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

NormPart::NormPart(const BuildContext& context, const graph::Norm& norm, std::int64_t dim,
                   const weights::LayerWeights& weights, std::int64_t pitch, bool operand)
    : shape_{norm.kind, dim, pitch, operand}, eps_(static_cast<float>(norm.eps)) {
  const auto load = [&](const char* name) {
    const float* values = weights.find(name);
    return values ? upload({values, static_cast<std::size_t>(dim)}) : DeviceBuffer();
  };
  if (norm.kind != graph::NormKind::none) {
    weight_ = load("norm.weight");
    bias_ = load("norm.bias");
  }
  operation_ = context.family.norm(shape_, context.precision, context.device);
}

void NormPart::enqueue(cudaStream_t stream, const void* x, void* y, void* copy, const kernels::Cells& cells,
                       std::int64_t tokens) const {
  operation_->enqueue(
      stream, {x, y, copy, reinterpret_cast<const float*>(weight_.data()),
               reinterpret_cast<const float*>(bias_.data()), cells, tokens, shape_.dim, shape_.pitch, eps_});
}

}  // namespace warpweave::cuda
