#include "cuda/memory.h"

#include <cuda_runtime_api.h>

#include <bit>
#include <cstdio>
#include <utility>
#include <vector>

#include "cuda/kernel.h"
#include "warpweave/error.h"
#include "warpweave/tensor.h"

namespace warpweave::cuda {

std::string bytes_in_words(std::int64_t bytes) {
  const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
  return text;
}

DeviceBuffer::DeviceBuffer(std::size_t bytes, const char* what) : bytes_(bytes) {
  if (bytes == 0) return;
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw Error(ErrorCode::device, std::string(what) + ": " +
                                       bytes_in_words(static_cast<std::int64_t>(bytes)) +
                                       " of device memory are needed, but only " +
                                       bytes_in_words(static_cast<std::int64_t>(free)) + " are free");
  }
  check(status, what);
  data_ = static_cast<std::byte*>(data);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_) cudaFree(data_);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedBuffer::PinnedBuffer(std::size_t bytes) {
  void* data = nullptr;
  check(cudaMallocHost(&data, bytes), "page-locked host memory");
  data_ = static_cast<std::byte*>(data);
}

PinnedBuffer::~PinnedBuffer() {
  if (data_) cudaFreeHost(data_);
}

DeviceBuffer upload_bytes(std::span<const std::byte> values, const char* what) {
  DeviceBuffer buffer(values.size(), what);
  if (values.empty()) return buffer;
  check(cudaMemcpy(buffer.data(), values.data(), values.size(), cudaMemcpyHostToDevice), what);
  // A copy from pageable memory may return before its last part has reached the device, and a stream that
  // does not block would not wait for it.
  check(cudaStreamSynchronize(cudaStreamLegacy), what);
  return buffer;
}

DeviceBuffer upload(std::span<const float> values) { return upload_bytes(std::as_bytes(values), "weights"); }

DeviceBuffer upload_operand(std::span<const float> values, Precision precision) {
  if (precision == Precision::tf32) {
    std::vector<float> rounded(values.begin(), values.end());
    for (float& v : rounded) {  // to 10 bits of mantissa, ties away from zero, as cvt.rna.tf32.f32
      v = std::bit_cast<float>((std::bit_cast<std::uint32_t>(v) + 0x1000u) & 0xffffe000u);
    }
    return upload(rounded);
  }
  if (precision == Precision::fp32) return upload(values);
  const Tensor converted =
      Tensor::from({static_cast<std::int64_t>(values.size())}, values).to(storage_type(precision));
  return upload_bytes({static_cast<const std::byte*>(converted.data()), converted.bytes()}, "weights");
}

}  // namespace warpweave::cuda
