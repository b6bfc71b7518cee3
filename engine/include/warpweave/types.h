// Element types, precisions, devices and grid shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace warpweave {

// Element types of tensors. Grids are f32, f16, bf16 or (CPU, precision fp64) f64; masks are u8 or boolean.
enum class DType : std::uint8_t { f64, f32, f16, bf16, u8, boolean };

std::size_t itemsize(DType type) noexcept;        // bytes per element
std::string_view to_string(DType type) noexcept;  // "float32", "bfloat16", ...
DType parse_dtype(std::string_view name);         // the inverse; throws Error(input)

// Type of product operands and of the grid stored between layers. Statistics of norm and softmax and all
// accumulation are float32 or wider. tf32 stores float32. fp64 exists on the CPU only, in `reference`.
enum class Precision : std::uint8_t { fp32, tf32, bf16, fp16, fp64 };

std::string_view to_string(Precision precision) noexcept;  // "fp32", ...
Precision parse_precision(std::string_view name);          // throws Error(input)
DType storage_type(Precision precision) noexcept;          // element type of the grid between layers

// Where a model runs.
struct Device {
  enum class Kind : std::uint8_t { automatic, cpu, cuda };
  Kind kind = Kind::automatic;
  int index = 0;  // of the GPU, for Kind::cuda

  static Device automatic() noexcept { return {}; }  // a usable GPU, else the CPU
  static Device cpu() noexcept { return {Kind::cpu, 0}; }
  static Device cuda(int index = 0) noexcept { return {Kind::cuda, index}; }
  friend bool operator==(const Device&, const Device&) = default;
};

std::string to_string(Device device);        // "auto", "cpu", "cuda:0"
Device parse_device(std::string_view name);  // "auto", "cpu", "cuda" or "cuda:N"; throws Error(input)

// A dense row-major grid [batch, rows, columns, channels]; channels are contiguous. Sizes are 64-bit.
struct GridShape {
  std::int64_t batch = 0, rows = 0, columns = 0, channels = 0;

  std::int64_t cells() const noexcept { return batch * rows * columns; }
  std::int64_t elements() const noexcept { return cells() * channels; }
  friend bool operator==(const GridShape&, const GridShape&) = default;
};

std::string to_string(const GridShape& shape);  // "[4, 32, 32, 64]"
// Throws Error(input) unless every size is at least 1 and the element count is below 2^57.
void check(const GridShape& shape, std::string_view what);

// What a session is prepared for: sizes of the model's *input* grid (for an image model: pixels).
struct Shape {
  std::int64_t batch = 1, rows = 0, columns = 0;
  friend bool operator==(const Shape&, const Shape&) = default;
};

}  // namespace warpweave
