// Specialisation and launch of kernels/composed/attention.cuh.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "cuda/family.h"

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
std::unique_ptr<const AttentionOperation> make_attention(const AttentionShape& shape, Precision precision,
                                                         const GpuDevice& device);

}  // namespace warpweave::cuda
