// Products that the kernels need whose warps own sequences: of tiles, from another tile on (ptx/mma.cuh has the
// fragments), and of two elements at a time.
#pragma once

#include "ptx/matrix.cuh"
#include "ptx/types.cuh"

namespace warpweave {

// d = c + a * b. Several products may begin from one c, which then needs no copies.
template <class T>
__device__ __forceinline__ void mma_from(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const float (&c)[4]);

template <>
__device__ __forceinline__ void mma_from<bf16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

template <>
__device__ __forceinline__ void mma_from<f16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// a * b + c of both elements, rounded once.
template <class T>
__device__ __forceinline__ u32 multiply_add(u32 a, u32 b, u32 c);

template <>
__device__ __forceinline__ u32 multiply_add<bf16>(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

template <>
__device__ __forceinline__ u32 multiply_add<f16>(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

}  // namespace warpweave
