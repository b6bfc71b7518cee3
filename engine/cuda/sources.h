// The files of kernels/, embedded into the library when it is built.
#pragma once

#include <span>

namespace warpweave::cuda {

struct KernelSource {
  const char* name;  // relative to kernels/, as other files include it
  const char* text;
};
std::span<const KernelSource> kernel_sources();

}  // namespace warpweave::cuda
