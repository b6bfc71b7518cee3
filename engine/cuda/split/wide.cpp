#include "cuda/split/wide.h"

#include <string>

#include "cuda/family.h"
#include "cuda/split/pack.h"
#include "cuda/tensor_map.h"

namespace warpweave::cuda::split {
namespace {

constexpr std::int64_t kLeastColumns = 96;
constexpr std::int64_t kPart = kDepth * 2;  // bytes of a part of a row of a stage
constexpr std::int64_t kWeightStage = kWeightParts * WidePlan::kColumns * kPart;  // bytes
constexpr std::int64_t kBarriers = 16 * WidePlan::kStages;

std::string arguments(int parts, const std::string& middle) {
  return "<" + std::to_string(parts) + ", " + middle + ", " + std::to_string(WidePlan::kGroups) + ", " +
         std::to_string(WidePlan::kStages) + ">";
}
const std::string kScope = "warpweave::kernels::split::";

}  // namespace

bool wide_takes(std::int64_t n, const plan::Conditions& conditions) {
  return conditions.compute_capability == 90 && n >= kLeastColumns;
}

std::size_t wide_project_bytes(std::int64_t dim, int parts) {
  const std::int64_t depth = (dim + kDepth - 1) / kDepth * kDepth;
  return static_cast<std::size_t>(WidePlan::kTokens * parts * depth * 2 + WidePlan::kStages * kWeightStage +
                                  kBarriers);
}

std::size_t wide_linear_bytes(int parts) {
  return static_cast<std::size_t>(WidePlan::kStages * (WidePlan::kTokens * parts * kPart + kWeightStage) +
                                  kBarriers);
}

KernelSpec wide_project_spec(const graph::AxialAttention& layer, int parts) {
  return {"split/wide_project.cuh",
          kScope + "wide_project" +
              arguments(parts, device_norm(layer.norm.kind) + ", " + std::to_string(layer.dim) + ", " +
                                   std::to_string(head_pitch(layer.head_dim)))};
}
KernelSpec wide_to_heads_spec(std::int64_t head, int parts) {
  return {"split/wide_linear.cuh", kScope + "wide_to_heads" + arguments(parts, std::to_string(head))};
}
KernelSpec wide_to_grid_spec(bool residual, int parts) {
  return {"split/wide_linear.cuh", kScope + "wide_to_grid" + arguments(parts, residual ? "true" : "false")};
}

void encode_rows(kernels::split::TensorMap& map, const void* rows, std::int64_t count, int parts,
                 std::int64_t k) {
  static_assert(WidePlan::kColumns == WidePlan::kTokens);
  encode_tensor_map(&map, {.address = rows,
                           .extent = {k, count, parts, 1},
                           .stride = {parts * k * 2, k * 2, parts * k * 2},
                           .box = {kDepth, WidePlan::kColumns, static_cast<std::uint32_t>(parts), 1},
                           .swizzle = static_cast<int>(kPart)});
}

}  // namespace warpweave::cuda::split
