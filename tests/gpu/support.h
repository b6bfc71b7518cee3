// Device memory, streams and graphs for the GPU tests, and what they share.
#pragma once

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "properties/problem.h"
#include "warpweave/warpweave.h"

namespace warpweave::gpu_test {

inline void require(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}
#define REQUIRE_CUDA(call) ::warpweave::gpu_test::require(call, #call)

class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) { REQUIRE_CUDA(cudaMalloc(&data_, bytes)); }
  explicit DeviceMemory(const Tensor& host) : DeviceMemory(host.bytes()) {
    REQUIRE_CUDA(cudaMemcpy(data_, host.data(), host.bytes(), cudaMemcpyHostToDevice));
    // It may return before the last part is there, and the tests' streams would not wait for it.
    REQUIRE_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  void copy_to(Tensor& host) const {
    REQUIRE_CUDA(cudaMemcpy(host.data(), data_, host.bytes(), cudaMemcpyDeviceToHost));
  }

 private:
  void* data_ = nullptr;
};

class Stream {
 public:
  Stream() { REQUIRE_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT: implicit, as the C functions take it
  void wait() const { REQUIRE_CUDA(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// Everything that `body` launches on the stream, captured in the mode that refuses allocation and
// synchronisation.
template <class Body>
cudaGraphExec_t capture(cudaStream_t stream, const Body& body) {
  cudaGraph_t graph = nullptr;
  REQUIRE_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  body();
  REQUIRE_CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
  REQUIRE_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  cudaGraphDestroy(graph);
  return executable;
}

inline const std::vector<std::string>& plans() {
  static const std::vector<std::string> list = {"composed", "cuda_reference", "long", "resident", "split"};
  return list;
}

inline constexpr Precision kPrecisions[] = {Precision::fp32, Precision::tf32, Precision::bf16,
                                            Precision::fp16};

inline Engine engine(const Model& model, const std::string& plan, Precision precision,
                     std::int64_t limit = 0) {
  EngineOptions options;
  options.device = Device::cuda(0);
  options.precision = precision;
  options.plan = plan;
  options.workspace_limit = limit;
  return Engine(model, options);
}

// Largest ||y - y64|| / ||y64 - x|| on random problems that no fixture describes.
inline double loose_limit(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return 4e-6;
    case Precision::tf32:
      return 2e-3;
    case Precision::fp16:
      return 6e-3;
    default:
      return 5e-2;
  }
}

// Channels that are no whole number of tiles, of one layer with 192 columns of q, k and v, at both kinds of
// length.
inline constexpr std::int64_t kOddDims[] = {4, 12, 20, 36, 72, 100, 132, 192, 252};
inline constexpr std::int64_t kOddLengths[] = {40, 70};
inline Model odd_model(std::int64_t dim) {
  return properties::make_model(dim, {"axial_attention: {axis: row, heads: 2, head_dim: 32}"});
}

// Seed and shapes of the random problems, also for filling the kernel cache ahead of a run.
inline constexpr int kRandomProblems = 40;

}  // namespace warpweave::gpu_test
