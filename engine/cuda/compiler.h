// The run-time compiler: from a kernel's name to machine code for one architecture, through the disk cache.
// Needs no GPU and no CUDA header.
#pragma once

#include <compare>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cuda/kernel_cache.h"

namespace warpweave::cuda {

class Nvrtc;

// One specialisation: a __global__ template of a file under kernels/, with its arguments filled in.
struct KernelSpec {
  std::string file;        // "reference/norm.cuh"
  std::string expression;  // "warpweave::kernels::reference::norm<float, 1>"
  friend auto operator<=>(const KernelSpec&, const KernelSpec&) = default;
};

// "sm_90a" for 90 (the instructions that only Hopper has need the letter), else "sm_80", "sm_120", ...
std::string architecture_name(int compute_capability);
// The inverse, for command lines: 90 of "sm_90" and of "sm_90a"; throws Error(input).
int parse_architecture(const std::string& name);

class Compiler {
 public:
  // Neither NVRTC nor the cache folder has to exist. NVRTC, which takes its time to open, is opened when
  // something is not in the cache, or by missing().
  Compiler();
  ~Compiler();

  // From the cache, else by NVRTC. Throws Error(device) when it is not in the cache and NVRTC is absent or
  // does not know the architecture, Error(internal) with the compiler's log when the source does not compile.
  // May be called from several threads.
  CompiledKernel compile(const KernelSpec& spec, int compute_capability) const;
  // The same for many, in parallel; results in the order of `specs`.
  std::vector<CompiledKernel> compile(std::span<const KernelSpec> specs, int compute_capability) const;

  // Why nothing new can be compiled, or empty. With a filled cache the compiler is not needed.
  const std::string& missing() const;
  const KernelCache& cache() const noexcept { return cache_; }

 private:
  const Nvrtc* nvrtc() const;  // null when missing

  mutable std::once_flag opened_;
  mutable std::unique_ptr<const Nvrtc> nvrtc_;
  mutable std::string missing_;
  std::string installed_;  // its version where that is known without opening it, else empty
  KernelCache cache_;
  bool verbose_;
};

}  // namespace warpweave::cuda
