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
constexpr std::int64_t kBarriers = 32;                                            // bytes a stage
constexpr std::int64_t kConstants =
    WidePlan::kGroups * 2 * WidePlan::kColumns * 4;  // factors and biases of a tile
constexpr char kScope[] = "warpweave::kernels::split::";

// Two blocks a multiprocessor where tokens of one part leave them the registers, and `tokens` bytes the
// shared memory.
WidePlan plan_for(int parts, std::int64_t tokens, std::int64_t stage, std::int64_t constants) {
  WidePlan plan{};
  plan.blocks = parts == 1 && tokens <= 32 * 1024 ? 2 : 1;
  plan.stages = plan.blocks == 2 ? 4 : 5;
  plan.threads = WidePlan::kGroups * 128 + (plan.blocks == 1 ? 32 : 0);  // a warp that loads
  plan.shared_bytes = static_cast<std::size_t>(tokens + plan.stages * (stage + kBarriers) + constants);
  return plan;
}

std::string arguments(const WidePlan& plan, int parts, const std::string& middle) {
  return "<" + std::to_string(parts) + ", " + middle + ", " + std::to_string(WidePlan::kGroups) + ", " +
         std::to_string(plan.stages) + ", " + std::to_string(plan.blocks) + ">";
}

}  // namespace

bool wide_takes(std::int64_t n, const plan::Conditions& conditions) {
  return conditions.compute_capability == 90 && n >= kLeastColumns;
}

WidePlan wide_project_plan(std::int64_t dim, int parts) {
  const std::int64_t depth = (dim + kDepth - 1) / kDepth * kDepth;
  return plan_for(parts, WidePlan::kTokens * parts * depth * 2, kWeightStage, 2 * kConstants);
}

WidePlan wide_linear_plan(int parts) {
  return plan_for(parts, 0, WidePlan::kTokens * parts * kPart + kWeightStage, kConstants);
}

KernelSpec wide_project_spec(const graph::AxialAttention& layer, int parts) {
  return {
      "split/wide_project.cuh",
      kScope + ("wide_project" + arguments(wide_project_plan(layer.dim, parts), parts,
                                           device_norm(layer.norm.kind) + ", " + std::to_string(layer.dim) +
                                               ", " + std::to_string(head_pitch(layer.head_dim))))};
}
KernelSpec wide_to_heads_spec(std::int64_t head, int parts) {
  return {"split/wide_linear.cuh",
          kScope + ("wide_to_heads" + arguments(wide_linear_plan(parts), parts, std::to_string(head)))};
}
KernelSpec wide_to_grid_spec(bool residual, int parts) {
  return {"split/wide_linear.cuh",
          kScope + ("wide_to_grid" + arguments(wide_linear_plan(parts), parts, residual ? "true" : "false"))};
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
