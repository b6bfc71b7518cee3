// Which instruction set the kernels run with.
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <string>

#include "cpu/fused/kernels.h"
#include "warpweave/error.h"

namespace warpweave::cpu::fused {

#if defined(__x86_64__)

namespace {
// By cpuid, because Clang 14 has no name for it: leaf 1, ECX bit 29 (Intel SDM vol. 2, CPUID).
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
}  // namespace

const Kernels* select_kernels() {
  const char* forced = std::getenv("WARPWEAVE_CPU_ISA");
  const std::string name = forced ? forced : "";
  if (name.empty()) return has_avx512() ? &kernels_avx512() : has_avx2() ? &kernels_avx2() : nullptr;
  if (name != "avx2" && name != "avx512")
    throw Error(ErrorCode::input,
                "WARPWEAVE_CPU_ISA: \"" + name + "\" is not an instruction set; avx2 or avx512 would be");
  if (name == "avx2" ? !has_avx2() : !has_avx512())
    throw Error(ErrorCode::device, "WARPWEAVE_CPU_ISA: this CPU has no " + name +
                                       "; unset the variable to let Warpweave choose");
  return name == "avx2" ? &kernels_avx2() : &kernels_avx512();
}

#else

const Kernels* select_kernels() { return nullptr; }

#endif

}  // namespace warpweave::cpu::fused
