// The kernels for AVX2 with FMA and F16C. The file's own compile flags are in CMakeLists.txt.
#include "cpu/fused/vec_avx2.h"

#include "cpu/fused/kernels_body.h"

namespace warpweave::cpu::fused {

const Kernels& kernels_avx2() {
  static constexpr Kernels kernels = avx2::make_kernels("avx2");
  return kernels;
}

}  // namespace warpweave::cpu::fused
