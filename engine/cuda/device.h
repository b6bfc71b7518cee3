// A GPU in use by an engine: its properties, its kernels, its matrix-product library.
#pragma once

#include <memory>
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
  plan::Conditions conditions(Precision precision) const noexcept;
  KernelStore& kernels() const noexcept { return *kernels_; }
  // Null when cuBLASLt was not found; blas_missing() says why.
  const Blas* blas() const noexcept { return blas_.get(); }
  const std::string& blas_missing() const noexcept { return blas_missing_; }

 private:
  int index_;
  int compute_capability_ = 0, multiprocessors_ = 0;
  std::int64_t shared_memory_per_block_ = 0;
  std::unique_ptr<KernelStore> kernels_;
  std::unique_ptr<const Blas> blas_;
  std::string blas_missing_;
};

}  // namespace warpweave::cuda
