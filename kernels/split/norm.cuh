// The norm of composed/norm.cuh with its result in parts: y [token, PARTS, PITCH], times 2^SHIFT.
#pragma once

#include "composed/norm.cuh"
#include "ptx/copy.cuh"
#include "split/parts.cuh"

namespace warpweave::kernels::split {

template <int PARTS, int SHIFT>
struct Operand {};

}  // namespace warpweave::kernels::split

namespace warpweave::kernels::composed {

template <int PARTS, int SHIFT, int PITCH>
struct Row<split::Operand<PARTS, SHIFT>, PITCH> {
  template <int V>
  static __device__ __forceinline__ void store(void* y, i64 token, int d, const float (&values)[V], u64) {
    static_assert(V == 4);
    constexpr float SCALE = static_cast<float>(1 << SHIFT);
    const split::Parts<PARTS> a(values[0] * SCALE, values[1] * SCALE), b(values[2] * SCALE, values[3] * SCALE);
    f16* const row = static_cast<f16*>(y) + token * (PARTS * PITCH) + d;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) store_global(row + i * PITCH, a.part[i], b.part[i]);
  }
};

}  // namespace warpweave::kernels::composed
