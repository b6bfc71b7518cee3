// The products of split on compute capability exactly 9.0 (kernels/split/wide_project.cuh, wide_linear.cuh):
// specialisations, shared memory, and the maps by which the copy engine finds operands.
#pragma once

#include <cstdint>

#include "cuda/compiler.h"
#include "graph/layers/axial_attention.h"
#include "plan/implementation.h"
#include "split/params.h"

namespace warpweave::cuda::split {

struct WidePlan {
  static constexpr std::int64_t kGroups = 2, kTokens = 64 * kGroups, kColumns = 128;
  std::int64_t stages, blocks;  // of the ring; of a multiprocessor
  int threads;
  std::size_t shared_bytes;
};

// Whether a weight of n rows is worth tiles of 128 columns.
bool wide_takes(std::int64_t n, const plan::Conditions& conditions);

WidePlan wide_project_plan(std::int64_t dim, int parts);
WidePlan wide_linear_plan(int parts);
KernelSpec wide_project_spec(const graph::AxialAttention& layer, int parts);
KernelSpec wide_to_heads_spec(std::int64_t head, int parts);
KernelSpec wide_to_grid_spec(bool residual, int parts);

// Rows of fp16 [rows, parts, k] in boxes of 128 rows and 32 of k, all parts of them.
void encode_rows(kernels::split::TensorMap& map, const void* rows, std::int64_t count, int parts,
                 std::int64_t k);

}  // namespace warpweave::cuda::split
