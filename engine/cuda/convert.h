// The kernel between two element types of a grid.
#pragma once

#include "common/params.h"
#include "cuda/compiler.h"
#include "warpweave/types.h"

namespace warpweave::cuda {

inline KernelSpec convert_kernel() { return {"common/convert.cuh", "warpweave::kernels::convert"}; }

inline kernels::ElementType element_type(DType type) {
  static_assert(static_cast<int>(DType::f64) == static_cast<int>(kernels::ElementType::f64));
  static_assert(static_cast<int>(DType::f32) == static_cast<int>(kernels::ElementType::f32));
  static_assert(static_cast<int>(DType::f16) == static_cast<int>(kernels::ElementType::f16));
  static_assert(static_cast<int>(DType::bf16) == static_cast<int>(kernels::ElementType::bf16));
  return static_cast<kernels::ElementType>(type);
}

}  // namespace warpweave::cuda
