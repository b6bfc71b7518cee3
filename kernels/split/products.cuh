// The two products of attention with operands in parts (parts.cuh), in the interface of composed/products.cuh.
// A row of q, k and v is [PARTS, HEAD] fp16. HEAD is a multiple of 16.
//
// The tensor core truncates as it accumulates, an error that grows with the length of the sum, so sums over 32 keys,
// and over a head's channels, begin at zero and are added up outside. Weights of softmax come out 2^13 times as large, so that
// the small ones keep their digits.
#pragma once

#include "composed/attention.cuh"
#include "split/parts.cuh"

namespace warpweave::kernels::split {

template <int HEAD, int PARTS, int ROW_PITCH = PARTS * HEAD * 2 + 16>  // bytes of shared memory from row to row
struct SplitProducts {
  using Element = f16;
  static constexpr int HEAD_DIM = HEAD, ROW = PARTS * HEAD;
  static constexpr int ROW_BYTES = ROW_PITCH, PART_BYTES = HEAD * 2;
  static constexpr float SLACK = 2.0f, BOOST = 13.0f;
  static constexpr bool NARROW = true;

  template <int TILES>
  struct Query {
    u32 address;  // of the warp's first row
  };

  static __device__ __forceinline__ void store(u32 row, int channel, float first, float second) {
    const Parts<PARTS> value(first, second);
#pragma unroll
    for (int i = 0; i < PARTS; ++i) store_shared(row + i * PART_BYTES + channel * 2, value.part[i]);
  }

  template <int TILES>
  static __device__ __forceinline__ void load_query(Query<TILES>& q, u32 address) {
    q.address = address;
  }

  // s is zero on entry.
  template <int TILES, int KEYS>
  static __device__ __forceinline__ void scores(float (&s)[TILES][KEYS / 8][4], const Query<TILES>& q, u32 keys) {
    const int lane = threadIdx.x % 32;
    const u32 from = keys + (lane / 16 * 8 + lane % 8) * ROW_BYTES + lane / 8 % 2 * 16;
    const u32 own = q.address + (lane % 16) * ROW_BYTES + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < HEAD / 16; ++k) {
      u32 a[TILES][PARTS][4];
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int i = 0; i < PARTS; ++i)
          load_matrices(a[m][i], own + m * 16 * ROW_BYTES + i * PART_BYTES + k * 32);
      }
#pragma unroll
      for (int n = 0; n < KEYS / 8; n += 2) {
        u32 b[PARTS][4];
#pragma unroll
        for (int i = 0; i < PARTS; ++i) load_matrices(b[i], from + n * 8 * ROW_BYTES + i * PART_BYTES + k * 32);
#pragma unroll
        for (int m = 0; m < TILES; ++m) multiply(s[m][n], s[m][n + 1], a[m], b);
      }
    }
  }

  template <int TILES, int KEYS>
  static __device__ __forceinline__ void accumulate(float (&o)[TILES][HEAD / 8][4],
                                                    const float (&p)[TILES][KEYS / 8][4], u32 values) {
    static_assert(KEYS <= 32);
    const int lane = threadIdx.x % 32;
    const u32 from = values + lane % 16 * ROW_BYTES + lane / 16 * 16;
    u32 a[TILES][KEYS / 16][PARTS][4];
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
      for (int k = 0; k < KEYS / 16; ++k) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float(&tile)[4] = p[m][2 * k + r / 2];
          const Parts<PARTS> weight(tile[r % 2 * 2], tile[r % 2 * 2 + 1]);
#pragma unroll
          for (int i = 0; i < PARTS; ++i) a[m][k][i][r] = weight.part[i];
        }
      }
    }
#pragma unroll
    for (int n = 0; n < HEAD / 8; n += 2) {
      float part[TILES][2][4] = {};
#pragma unroll
      for (int k = 0; k < KEYS / 16; ++k) {
        u32 b[PARTS][4];
#pragma unroll
        for (int i = 0; i < PARTS; ++i)
          load_matrices_transposed(b[i], from + k * 16 * ROW_BYTES + i * PART_BYTES + n * 16);
#pragma unroll
        for (int m = 0; m < TILES; ++m) multiply(part[m][0], part[m][1], a[m][k], b);
      }
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int r = 0; r < 4; ++r) o[m][n][r] += part[m][0][r], o[m][n + 1][r] += part[m][1][r];
      }
    }
  }
};

}  // namespace warpweave::kernels::split
