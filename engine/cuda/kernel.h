// Kernels on a device: loaded machine code and its launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "cuda/compiler.h"

namespace warpweave::cuda {

// Throws Error(device): "WHAT: CUDA's words". Clears CUDA's last error.
void check(cudaError_t status, const char* what);

struct Launch {
  std::int64_t blocks = 1;       // at most 2^31 - 1
  int threads = 128;             // per block
  std::size_t shared_bytes = 0;  // dynamic; allow() it first when above 48 KiB
  int cluster = 1;               // blocks per cluster
  // Programmatic dependent launch, where the GPU has it (9.0): the kernel waits by griddepcontrol.wait.
  bool overlap_previous = false;
};

// Borrowed from a KernelStore. A kernel takes one structure of parameters by value.
class Kernel {
 public:
  Kernel() = default;
  // Raises the limit of dynamic shared memory, for all who use this kernel; never lowers it.
  void allow(std::size_t shared_bytes) const;
  // Blocks of this size that one multiprocessor holds at a time.
  int resident_blocks(int threads, std::size_t shared_bytes) const;
  template <class Params>
  void launch(cudaStream_t stream, const Launch& shape, const Params& params) const {
    void* arguments[] = {const_cast<Params*>(&params)};
    launch(stream, shape, arguments);
  }

 private:
  friend class KernelStore;
  void launch(cudaStream_t stream, const Launch& shape, void** arguments) const;
  cudaKernel_t handle_ = nullptr;
  const char* label_ = "";
  bool verbose_ = false;
  bool overlaps_ = false;        // whether the GPU has programmatic dependent launch
  std::mutex* limit_ = nullptr;  // guards the limit of dynamic shared memory
};

// The kernels of one device, each compiled and loaded once. Safe to use from several threads.
class KernelStore {
 public:
  KernelStore(std::shared_ptr<const Compiler> compiler, int compute_capability);
  ~KernelStore();
  // Compiles (in parallel) and loads what is not loaded yet. The device must be current.
  void load(std::span<const KernelSpec> specs);
  Kernel get(const KernelSpec& spec);  // loads it when needed

 private:
  struct Loaded;
  std::shared_ptr<const Compiler> compiler_;
  int compute_capability_;
  std::mutex mutex_;
  std::map<KernelSpec, std::unique_ptr<Loaded>> loaded_;
};

}  // namespace warpweave::cuda
