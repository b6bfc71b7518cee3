// Host memory to device memory and back through page-locked chunks, so that a copy runs at the bus's speed
// and the copy into one chunk overlaps the transfer of the other.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

#include "cuda/memory.h"

namespace warpweave::cuda {

class Staging {
 public:
  Staging();
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // The source may be changed once it returns; the transfer may still be under way on the stream.
  void to_device(cudaStream_t stream, void* device, const void* host, std::size_t bytes);
  // Returns when the host memory is complete.
  void to_host(cudaStream_t stream, void* host, const void* device, std::size_t bytes);

 private:
  static constexpr std::size_t kChunk = std::size_t{16} << 20;
  std::array<PinnedBuffer, 2> chunks_;
  std::array<cudaEvent_t, 2> done_{};
};

}  // namespace warpweave::cuda
