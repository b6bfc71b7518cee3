// Included once by each kernels_*.cpp after its vec_*.h: the table of everything, for that instruction set.
#pragma once

#include "cpu/fused/attention.h"
#include "cpu/fused/elementwise.h"
#include "cpu/fused/exp.h"
#include "cpu/fused/micro_gemm.h"
#include "cpu/fused/norm.h"

namespace warpweave::cpu::fused::WARPWEAVE_ISA {

constexpr Kernels make_kernels(const char* name) {
  return {name, kLanes, kPanel, gemm, norm, rotate, attend, activate, round_array, add_arrays, exp2_array};
}

}  // namespace warpweave::cpu::fused::WARPWEAVE_ISA
