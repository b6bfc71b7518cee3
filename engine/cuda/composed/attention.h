// Specialisation and launch of kernels/composed/attention.cuh.
#pragma once

#include <cstddef>
#include <memory>

#include "cuda/family.h"

namespace warpweave::cuda {

inline constexpr std::int64_t kMostHeadDim = 256;

struct AttentionTiles {
  int warps, tiles, keys;  // 16 * tiles queries per warp; keys per step
  int queries() const noexcept { return warps * tiles * 16; }
  std::size_t shared_bytes(std::int64_t head_dim, std::size_t element) const noexcept {
    return static_cast<std::size_t>(queries() + 4 * keys) *
           (static_cast<std::size_t>(head_dim) * element + 16);
  }
};

AttentionTiles attention_tiles(const AttentionShape& shape, Precision precision);
KernelSpec attention_kernel(const AttentionShape& shape, Precision precision);
std::unique_ptr<const AttentionOperation> make_attention(const AttentionShape& shape, Precision precision,
                                                         const GpuDevice& device);

}  // namespace warpweave::cuda
