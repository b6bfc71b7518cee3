// Conversion between element types of a grid. One thread per element in a loop over the launch. Limit: bytes.
#pragma once

#include "common/index.cuh"

namespace warpweave::kernels {

// Between an interface type and the type stored between layers. The types are run-time values, so that a model
// needs one such kernel.
template <class From, class To>
__device__ __forceinline__ void convert_all(const ConvertParams& p) {
  for (i64 i = global_thread(); i < p.count; i += all_threads()) {
    static_cast<To*>(p.y)[i] = from_float<To>(to_float(static_cast<const From*>(p.x)[i]));
  }
}

template <class From>
__device__ __forceinline__ void convert_from(const ConvertParams& p) {
  switch (p.to) {
    case ElementType::f64: return convert_all<From, double>(p);
    case ElementType::f32: return convert_all<From, float>(p);
    case ElementType::f16: return convert_all<From, f16>(p);
    case ElementType::bf16: return convert_all<From, bf16>(p);
  }
}

__global__ void convert(const ConvertParams p) {
  switch (p.from) {
    case ElementType::f64: return convert_from<double>(p);
    case ElementType::f32: return convert_from<float>(p);
    case ElementType::f16: return convert_from<f16>(p);
    case ElementType::bf16: return convert_from<bf16>(p);
  }
}

}  // namespace warpweave::kernels
