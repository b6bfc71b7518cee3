// Element types of device code, and conversions between them and float32. No header of the CUDA toolkit is used,
// so that run-time compilation needs the compiler's library alone.
#pragma once

namespace warpweave {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

struct bf16 { u16 bits; };
struct f16 { u16 bits; };

// Two neighbouring elements of T in one register, the first in the low half.
template <class T>
struct Pair;

template <>
struct Pair<bf16> {
  static constexpr u32 ones = 0x3f803f80u;
  static __device__ __forceinline__ u32 pack(float first, float second) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first));
    return r;
  }
  static __device__ __forceinline__ float first(u32 pair) { return __uint_as_float(pair << 16); }
  static __device__ __forceinline__ float second(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
};

template <>
struct Pair<f16> {
  static constexpr u32 ones = 0x3c003c00u;
  static __device__ __forceinline__ u32 pack(float first, float second) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first));
    return r;
  }
  static __device__ __forceinline__ float widen(u16 bits) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(bits));
    return r;
  }
  static __device__ __forceinline__ float first(u32 pair) { return widen(static_cast<u16>(pair & 0xffffu)); }
  static __device__ __forceinline__ float second(u32 pair) { return widen(static_cast<u16>(pair >> 16)); }
};

}  // namespace warpweave
