// Attention of 64 queries of a warpgroup over keys and values of one head that lie in shared memory (compute capability
// 9.0), as in long/attention.cuh: weights are exp2(score - base), base being the row's maximum over its first 64 keys,
// or nothing in bf16, and where their sum leaves the range in which they keep their digits, again with a maximum that
// follows. q comes multiplied by scale log2(e).
//
// K and V [longest, 32]: rows of 64 bytes, swizzled over them as the copy engine would.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/math.cuh"
#include "ptx/types.cuh"
#include "ptx/wgmma.cuh"

namespace warpweave::kernels::long_sequences {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class T>
constexpr bool kBased = true;
template <>
constexpr bool kBased<bf16> = false;  // as wide a range as float32

template <class T>
struct HeadAttention {
  using Query = u32[2][4];  // 64 queries as left operand
  using Scores = float[8][4];
  using Weights = u32[4][4];
  using Output = float[4][4];
  using Rows = float[2];  // of the rows lane / 4 and lane / 4 + 8 of a warp's 16
  static constexpr int kTile = 64, kRowBytes = 64, kTileUnits = kTile * kRowBytes / 16;

  u32 keys, values;  // in shared memory
  int length;        // of the sequence, above 0

  static __device__ __forceinline__ u32 place(u32 row, u32 piece) {  // of 8 channels
    return row * kRowBytes + ((piece ^ (row / 2 % 4)) * 16);
  }
  __device__ __forceinline__ int tiles() const { return (length + kTile - 1) / kTile; }

  // Rows of a tile as swizzled_rows() describes them. Sums of 32 bits: the addresses are far from a carry, and the high
  // half is a constant.
  static __device__ __forceinline__ u64 rows(u32 matrix, int units) {
    constexpr u64 high = static_cast<u64>(2u << 30 | 8 * kRowBytes >> 4) << 32;
    return high | ((matrix >> 4 | 1u << 16) + units);
  }
  __device__ __forceinline__ void multiply_keys(Scores& s, const Query& q, int tile) const {
    wgmma_fence();
    Wgmma<T, 64>::template registers<false>(s, q[0], rows(keys, tile * kTileUnits));
    Wgmma<T, 64>::template registers<true>(s, q[1], rows(keys, tile * kTileUnits + 2));
    wgmma_commit();
  }
  __device__ __forceinline__ void multiply_values(Output& o, const Weights& w, int tile) const {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i)  // 16 rows on
      Wgmma<T, 32>::template registers<true, true>(o, w[i], rows(values, tile * kTileUnits + i * kRowBytes));
    wgmma_commit();
  }

  // -infinity for keys past the end.
  __device__ __forceinline__ void select(Scores& s, int tile) const {
    const int end = length - tile * kTile - threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
        if (8 * n + r % 2 >= end) s[n][r] = minus_infinity();
    }
  }
  __device__ __forceinline__ bool cut(int tile) const { return (tile + 1) * kTile > length; }

  static __device__ __forceinline__ void maxima(const Scores& s, Rows& top) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = fmaxf(s[0][2 * half], s[0][2 * half + 1]);
#pragma unroll
      for (int n = 1; n < 8; ++n) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      top[half] = quad_max(most);
    }
  }

  // Scores to weights, and their sums.
  template <bool SUBTRACT>
  static __device__ __forceinline__ void exponentiate(Scores& s, const Rows& base, Rows& total) {
    float sum[2][2] = {};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        s[n][r] = exp2_approx(SUBTRACT ? s[n][r] - base[r / 2] : s[n][r]);
        sum[r / 2][r % 2] += s[n][r];
      }
    }
    total[0] += sum[0][0] + sum[0][1];
    total[1] += sum[1][0] + sum[1][1];
  }
  static __device__ __forceinline__ void pack(Weights& w, const Scores& s) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r) w[i][r] = Pair<T>::pack(s[2 * i + r / 2][r % 2 * 2], s[2 * i + r / 2][r % 2 * 2 + 1]);
  }
  static __device__ __forceinline__ void clear(Output& o, Rows& total) {
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int r = 0; r < 4; ++r) o[n][r] = 0.0f;
    total[0] = total[1] = 0.0f;
  }
  static __device__ __forceinline__ void add_up(Rows& total) {
    total[0] = quad_sum(total[0]);
    total[1] = quad_sum(total[1]);
  }

  // `wait(tile)` returns when the keys and values of a tile are there. False where the sums left the range.
  template <class Wait>
  __device__ __forceinline__ bool attend(Output& o, Rows& total, const Query& q, const Wait& wait) const {
    const int count = tiles();
    Scores s;
    Weights w;
    Rows base = {};
    clear(o, total);
    wait(0);
    multiply_keys(s, q, 0);
    wgmma_wait<0>();
    wgmma_settle(s);
    if (cut(0)) select(s, 0);
    if constexpr (kBased<T>) {
      maxima(s, base);
#pragma unroll
      for (int half = 0; half < 2; ++half) base[half] = base[half] == minus_infinity() ? 0.0f : base[half];
    }
    exponentiate<kBased<T>>(s, base, total);
    pack(w, s);
#pragma unroll 1
    for (int tile = 1; tile < count; ++tile) {
      wait(tile);
      multiply_keys(s, q, tile);
      multiply_values(o, w, tile - 1);
      wgmma_wait<1>();
      wgmma_settle(s);
      if (tile + 1 == count && cut(tile)) select(s, tile);
      exponentiate<kBased<T>>(s, base, total);
      wgmma_wait<0>();
      wgmma_settle(s);
      pack(w, s);
    }
    multiply_values(o, w, count - 1);
    add_up(total);
    wgmma_wait<0>();
    wgmma_settle(o);
    return sum_in_range<T>(total[0]) && sum_in_range<T>(total[1]);
  }

  // The maximum follows. Everything is there.
  __device__ __forceinline__ void attend_safely(Output& o, Rows& total, const Query& q) const {
    clear(o, total);
    Rows top = {minus_infinity(), minus_infinity()};
#pragma unroll 1
    for (int tile = 0; tile < tiles(); ++tile) {
      Scores s;
      Weights w;
      multiply_keys(s, q, tile);
      wgmma_wait<0>();
      wgmma_settle(s);
      if (cut(tile)) select(s, tile);
      Rows most, base;
      maxima(s, most);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        most[half] = fmaxf(most[half], top[half]);
        const float shrink = top[half] == most[half] ? 1.0f : exp2_approx(top[half] - most[half]);
        top[half] = most[half];
        base[half] = most[half] == minus_infinity() ? 0.0f : most[half];
        total[half] *= shrink;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          o[n][2 * half] *= shrink;
          o[n][2 * half + 1] *= shrink;
        }
      }
      exponentiate<true>(s, base, total);
      pack(w, s);
      multiply_values(o, w, tile);
      wgmma_wait<0>();
      wgmma_settle(o);
    }
    add_up(total);
  }

  // Divided by the sums of weights, as a left operand.
  static __device__ __forceinline__ void divide(Query& w, const Output& o, const Rows& total) {
    const float gain[2] = {total[0] == 0.0f ? 0.0f : reciprocal_approx(total[0]),
                           total[1] == 0.0f ? 0.0f : reciprocal_approx(total[1])};
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        w[i][r] = Pair<T>::pack(o[2 * i + r / 2][r % 2 * 2] * gain[r % 2],
                                o[2 * i + r / 2][r % 2 * 2 + 1] * gain[r % 2]);
  }
};

#endif

}  // namespace warpweave::kernels::long_sequences
