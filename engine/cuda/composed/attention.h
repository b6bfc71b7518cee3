// Attention of the composed family: specialisation and launch of kernels/composed/attention.cuh and, on
// compute capability exactly 9.0, of kernels/long/attention.cuh.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/family.h"
#include "long/attention_params.h"

namespace warpweave::cuda {

inline constexpr std::int64_t kMostHeadDim = 256;

struct AttentionTiles {
  int warps, tiles, keys;  // 16 * tiles queries per warp; keys per stage of shared memory
  bool ahead = false;      // the next scores are computed beside the exponentials; for long sequences
  int queries() const noexcept { return warps * tiles * 16; }
  std::size_t shared_bytes(const AttentionShape& shape, std::size_t element) const noexcept {
    const std::int64_t stages = std::min<std::int64_t>(3, (shape.length + keys - 1) / keys);
    const std::int64_t rows = queries() + 2 * keys * stages;
    return static_cast<std::size_t>(rows) * (static_cast<std::size_t>(shape.head_dim) * element + 16);
  }
};

AttentionTiles attention_tiles(const AttentionShape& shape, Precision precision);
KernelSpec attention_kernel(const AttentionShape& shape, Precision precision);
std::unique_ptr<const AttentionOperation> make_any_attention(const AttentionShape& shape, Precision precision,
                                                             const GpuDevice& device);

// The kernel of 9.0 takes no mask. Nothing where the other one is used instead, or cannot be this one.
using LongAttentionPlan = kernels::long_attention::Plan;
std::optional<LongAttentionPlan> long_attention_plan(const AttentionShape& shape,
                                                     const plan::Conditions& conditions);
// For heads of 32: as many groups as leave the fewest queries to padding.
LongAttentionPlan narrow_heads_plan(std::int64_t length);
KernelSpec long_attention_kernel(const LongAttentionPlan& plan, bool causal, Precision precision);

// LongAttentionPlan::short_start for a sequence of `length` and tiles of `keys`.
constexpr bool starts_short(std::int64_t length, bool causal, int keys) {
  return !causal && length > keys && (length - 1) % keys < keys / 2;
}

class LongAttention final : public AttentionOperation {
 public:
  LongAttention(const LongAttentionPlan& plan, bool causal, Precision precision, const GpuDevice& device);
  void enqueue(cudaStream_t stream, const kernels::AttentionParams& params) const override;
  // Where the plan has panels: ends with the output projection, and writes no params.o. params.mask_cells
  // tells where the sequences' cells are, from the cells that `output` begins at.
  void enqueue(cudaStream_t stream, const kernels::AttentionParams& params,
               const kernels::long_attention::OutputParams& output) const;

 private:
  const GpuDevice& device_;
  LongAttentionPlan plan_;
  bool causal_;
  std::int64_t most_blocks_;  // as many as run at a time
  Kernel kernel_;
};

std::unique_ptr<const AttentionOperation> make_long_attention(const LongAttentionPlan& plan, bool causal,
                                                              Precision precision, const GpuDevice& device);

// The one or, where there is a plan and no mask, the other; attention_kernels() are what it needs.
std::unique_ptr<const AttentionOperation> make_attention(const AttentionShape& shape, Precision precision,
                                                         const GpuDevice& device);
std::vector<KernelSpec> attention_kernels(const AttentionShape& shape, const plan::Conditions& conditions);

}  // namespace warpweave::cuda
