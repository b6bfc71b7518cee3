// Memory that is owned: on the device, and page-locked on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "warpweave/types.h"

namespace warpweave::cuda {

// Device memory. Throws Error(device) that says how much was wanted and how much is free; the device stays
// usable.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(std::size_t bytes, const char* what);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(std::size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  std::byte* data() const noexcept { return data_; }

 private:
  std::byte* data_ = nullptr;
};

// Copies of host values on the device; return when they are there. No bytes give an empty buffer.
DeviceBuffer upload_bytes(std::span<const std::byte> values, const char* what);
DeviceBuffer upload(std::span<const float> values);
// The same as operands of products in `precision`: rounded to bf16 or fp16, or to tf32 (kept in 32 bits).
DeviceBuffer upload_operand(std::span<const float> values, Precision precision);

// Lengths that share one allocation: each begins at a multiple of 256 bytes.
constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

std::string bytes_in_words(std::int64_t bytes);  // "1.5 GiB"

}  // namespace warpweave::cuda
