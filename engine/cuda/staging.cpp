#include "cuda/staging.h"

#include <algorithm>
#include <cstring>

#include "cuda/kernel.h"

namespace warpweave::cuda {

Staging::Staging() : chunks_{PinnedBuffer(kChunk), PinnedBuffer(kChunk)} {
  for (auto& event : done_)
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
}

Staging::~Staging() {
  for (auto event : done_) {
    if (event) cudaEventDestroy(event);
  }
}

void Staging::to_device(cudaStream_t stream, void* device, const void* host, std::size_t bytes) {
  int turn = 0;
  for (std::size_t at = 0; at < bytes; at += kChunk, turn ^= 1) {
    const std::size_t size = std::min(kChunk, bytes - at);
    check(cudaEventSynchronize(done_[turn]), "copying to the GPU");
    std::memcpy(chunks_[turn].data(), static_cast<const std::byte*>(host) + at, size);
    check(cudaMemcpyAsync(static_cast<std::byte*>(device) + at, chunks_[turn].data(), size,
                          cudaMemcpyHostToDevice, stream),
          "copying to the GPU");
    check(cudaEventRecord(done_[turn], stream), "copying to the GPU");
  }
}

void Staging::to_host(cudaStream_t stream, void* host, const void* device, std::size_t bytes) {
  std::size_t sizes[2] = {0, 0}, places[2] = {0, 0};
  const auto collect = [&](int turn) {
    if (sizes[turn] == 0) return;
    check(cudaEventSynchronize(done_[turn]), "copying from the GPU");
    std::memcpy(static_cast<std::byte*>(host) + places[turn], chunks_[turn].data(), sizes[turn]);
    sizes[turn] = 0;
  };
  int turn = 0;
  for (std::size_t at = 0; at < bytes; at += kChunk, turn ^= 1) {
    collect(turn);
    check(cudaEventSynchronize(done_[turn]), "copying from the GPU");  // of an earlier call
    sizes[turn] = std::min(kChunk, bytes - at);
    places[turn] = at;
    check(cudaMemcpyAsync(chunks_[turn].data(), static_cast<const std::byte*>(device) + at, sizes[turn],
                          cudaMemcpyDeviceToHost, stream),
          "copying from the GPU");
    check(cudaEventRecord(done_[turn], stream), "copying from the GPU");
  }
  collect(turn);
  collect(turn ^ 1);
}

}  // namespace warpweave::cuda
