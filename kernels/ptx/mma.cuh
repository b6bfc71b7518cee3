// Warp-level matrix product D += A * B, m16n8k16, 16-bit operands, float32 accumulators (PTX ISA, "mma.m16n8k16").
//
// With g = lane / 4 and c = lane % 4 a lane holds
//   A [16, 16]  a0 (g, 2c..)  a1 (g + 8, 2c..)  a2 (g, 2c + 8..)  a3 (g + 8, 2c + 8..)   two columns each
//   B [16, 8]   b0 (2c.., g)  b1 (2c + 8.., g)                                            two rows each
//   D [16, 8]   d0 d1 (g, 2c..)  d2 d3 (g + 8, 2c..)
// so two neighbouring D tiles, packed, are an A tile of the next product; and a packed D tile is a B tile of its
// transpose.
#pragma once

#include "ptx/types.cuh"

namespace warpweave {

template <class T>
__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);

template <>
__device__ __forceinline__ void mma<bf16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma<f16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace warpweave
