// Tensor maps: how Hopper's copy engine finds a box of a strided tensor (kernels/ptx/tma.cuh).
#pragma once

#include <array>
#include <cstdint>

namespace warpweave::cuda {

// Of 16-bit elements. Dimension 0 is contiguous; what a box covers beyond the extents is read as zeros.
struct TensorMapShape {
  const void* address = nullptr;         // aligned to 16 bytes
  std::array<std::int64_t, 4> extent{};  // elements, each below 2^32
  std::array<std::int64_t, 3> stride{};  // bytes between neighbours of dimensions 1 to 3, multiples of 16
  std::array<std::uint32_t, 4> box{};    // elements, at most 256 each
  int swizzle = 0;  // over 32, 64 or 128 bytes, which the box's rows do not exceed; 0: none
};

// Looks the driver's function up, so that encode_tensor_map() does nothing but call it. Throws Error(device)
// where the driver is too old.
void prepare_tensor_maps();

// Writes the 128 bytes of the map, aligned to 64. Calls the driver, but neither allocates nor synchronises;
// may be called during capture. Throws Error(device) in the driver's words.
void encode_tensor_map(void* map, const TensorMapShape& shape);

}  // namespace warpweave::cuda
