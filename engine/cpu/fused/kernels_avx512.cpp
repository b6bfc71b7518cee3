// The kernels for AVX512. The file's own compile flags are in CMakeLists.txt.
#include "cpu/fused/vec_avx512.h"

#include "cpu/fused/kernels_body.h"

namespace warpweave::cpu::fused {

const Kernels& kernels_avx512() {
  static constexpr Kernels kernels = avx512::make_kernels("avx512");
  return kernels;
}

}  // namespace warpweave::cpu::fused
