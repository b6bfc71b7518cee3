// float32 numbers as sums of 16-bit parts that tensor cores take: v 2^s = high + low, both fp16 (11 bits each, so 22 to
// 23 together), s chosen by the host so that no value of a tensor passes 2^15 (cuda/split/pack.h). A product of two such
// numbers is high high + high low + low high; the part left out, low low, is below float32's own rounding
// (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022). What is below 2^-3 loses digits
// of `low` to fp16's subnormal range, but never more than 2^-25, 2^-40 of the largest value.
//
// PARTS is of everything but weights: 2 in fp32; 1 in tf32, whose numbers have 11 bits as well. Weights have two parts all
// the same: their second one costs no bytes worth counting, and takes a third of the error away. (Not where a warp takes a
// sequence: warp_sequence.cuh.)
#pragma once

#include "ptx/mma.cuh"
#include "ptx/types.cuh"

namespace warpweave::kernels::split {

constexpr int WEIGHT_PARTS = 2;

// The parts of two neighbours, high ones first.
template <int PARTS>
struct Parts {
  u32 part[PARTS];
  __device__ __forceinline__ Parts(float first, float second) {
    part[0] = Pair<f16>::pack(first, second);
    if constexpr (PARTS == 2)
      part[1] = Pair<f16>::pack(first - Pair<f16>::first(part[0]), second - Pair<f16>::second(part[0]));
  }
};

// d0, d1 += a b for two tiles of b side by side, the smallest products first.
template <int A, int B>
__device__ __forceinline__ void multiply(float (&d0)[4], float (&d1)[4], const u32 (&a)[A][4], const u32 (&b)[B][4]) {
  if constexpr (A == 2) {
    mma<f16>(d0, a[1], b[0][0], b[0][1]);
    mma<f16>(d1, a[1], b[0][2], b[0][3]);
  }
  if constexpr (B == 2) {
    mma<f16>(d0, a[0], b[1][0], b[1][1]);
    mma<f16>(d1, a[0], b[1][2], b[1][3]);
  }
  mma<f16>(d0, a[0], b[0][0], b[0][1]);
  mma<f16>(d1, a[0], b[0][2], b[0][3]);
}

}  // namespace warpweave::kernels::split
