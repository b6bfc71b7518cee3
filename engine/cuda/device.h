// A GPU in use by an engine: its properties, its kernels, its matrix-product library.
#pragma once

#include <future>
#include <memory>
#include <mutex>
#include <string>

#include "cuda/kernel.h"
#include "plan/implementation.h"
#include "warpweave/types.h"

namespace warpweave::cuda {

class Blas;

// Makes a device current for a scope, and the one before it afterwards.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = -1;
};

// Why a GPU of this compute capability (75 for 7.5) cannot be used, or empty.
std::string capability_problem(int compute_capability);

// Outlives the steps that were built on it.
class GpuDevice {
 public:
  // Throws Error(device) in words when it cannot be used.
  explicit GpuDevice(int index);
  ~GpuDevice();

  int index() const noexcept { return index_; }
  int multiprocessors() const noexcept { return multiprocessors_; }
  // The share of so many bytes that one kernel writes and the next one reads that is worth keeping in L2
  // between them, above 0 (kernels/ptx/l2.cuh).
  float kept_share(std::int64_t bytes) const noexcept;
  // Whether kernels may use any memory of the host, as on Grace Hopper.
  bool reaches_host_memory() const noexcept { return reaches_host_memory_; }
  plan::Conditions conditions(Precision precision) const noexcept;
  KernelStore& kernels() const noexcept { return *kernels_; }

  // cuBLASLt takes a tenth of a second to open and to set itself up, so that is done when a plan needs it, in
  // the background from here on.
  void expect_blas(Precision precision) const;
  // Waits for that, and does it where nobody expected it. Null when it cannot be used.
  const Blas* blas() const;
  // Why it cannot be used, or empty: once it was opened all of it, before that no more than files tell.
  std::string blas_missing() const;

 private:
  struct OpenedBlas {
    std::unique_ptr<const Blas> blas;
    std::string missing;
  };
  const OpenedBlas& opened_blas() const;

  int index_;
  int compute_capability_ = 0, multiprocessors_ = 0;
  std::int64_t shared_memory_per_block_ = 0, l2_bytes_ = 0;
  bool reaches_host_memory_ = false;
  std::unique_ptr<KernelStore> kernels_;
  mutable std::mutex blas_mutex_;
  mutable std::shared_future<OpenedBlas> blas_;
  mutable int blas_attempt_ = 0;
};

}  // namespace warpweave::cuda
