// The norm of sequences that lie in a warp's registers as A fragments (ptx/mma.cuh).
#pragma once

#include "ptx/mma.cuh"
#include "resident/products.cuh"
#include "resident/tokens.cuh"

namespace warpweave {

// Whether a row may be scaled by two elements of T whose sum is the scale.
template <class T>
__device__ __forceinline__ bool splits(float scale);
template <>
__device__ __forceinline__ bool splits<bf16>(float scale) {
  return scale >= 0x1p-60f && scale <= 0x1p60f;
}
template <>
__device__ __forceinline__ bool splits<f16>(float scale) {  // so that the small one keeps enough digits
  return scale >= 0x1p-10f && scale <= 0x1p12f;
}

// Normalises a sequence of `Tiles` tiles of 16 rows as A fragments [tile][k step][4], in fewer instructions.
// Sums of rows are products by ones, sums of squares the diagonal of the product of the rows with themselves:
// exact products, summed in float32. The rows of LayerNorm's weights have sum zero (they are packed so), so that
// the mean of a row need not be subtracted; and a row is scaled by two elements whose sum is the scale, which
// rounds once where it matters. A row whose mean is larger than its spread, or whose scale is out of range, is
// done by normalise_row. What becomes of a row depends on that row alone.
template <class T, int Dim, int Kind, int Tiles, int Steps>
__device__ __forceinline__ void normalise_tiles(u32 (&n)[Tiles][Steps][4], float eps, int lane) {
  if constexpr (Kind == 0) return;
  const int g = lane / 4;
  u32 high[Tiles][2], low[Tiles][2];
  bool fine[Tiles][2], all = true;
#pragma unroll
  for (int t = 0; t < Tiles; ++t) {
    float sum[4] = {0, 0, 0, 0}, gram[2][4] = {};
#pragma unroll
    for (int k = 0; k < Steps; ++k) {
      if constexpr (Kind == 1) mma<T>(sum, n[t][k], Pair<T>::ones, Pair<T>::ones);
#pragma unroll
      for (int half = 0; half < 2; ++half) mma<T>(gram[half], n[t][k], n[t][k][half], n[t][k][half + 2]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float diagonal = g % 2 ? gram[half][2 * half + 1] : gram[half][2 * half],
                  square = __shfl_sync(0xffffffffu, diagonal, (lane & 28) | g / 2) * (1.0f / Dim),
                  mean = Kind == 1 ? sum[2 * half] * (1.0f / Dim) : 0,
                  scale = rsqrt_approx(square - mean * mean + eps);
      fine[t][half] = splits<T>(scale) && 2 * (mean * mean) <= square;
      all = all && fine[t][half];
      high[t][half] = Pair<T>::pack(scale, scale);
      const float rest = scale - Pair<T>::first(high[t][half]);
      low[t][half] = Pair<T>::pack(rest, rest);
    }
  }
  const auto scaled = [&](u32 x, int t, int half) {
    return multiply_add<T>(x, high[t][half], multiply_add<T>(x, low[t][half], 0x80008000u));
  };
  if (__all_sync(0xffffffffu, all)) {
#pragma unroll
    for (int t = 0; t < Tiles; ++t)
#pragma unroll
      for (int k = 0; k < Steps; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i)  // padding stays zero
          if (2 * k + i / 2 < Dim / 8) n[t][k][i] = scaled(n[t][k][i], t, i % 2);
    return;
  }
#pragma unroll
  for (int t = 0; t < Tiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      u32 v[Dim / 8];
#pragma unroll
      for (int i = 0; i < Dim / 8; ++i) v[i] = n[t][i / 2][half + i % 2 * 2];
      normalise_row<T, Dim, Kind>(v, eps);
#pragma unroll
      for (int i = 0; i < Dim / 8; ++i) {
        u32& x = n[t][i / 2][half + i % 2 * 2];
        x = fine[t][half] ? scaled(x, t, half) : v[i];
      }
    }
}

}  // namespace warpweave
