// A block's tile of a product of tokens by a weight, operands in parts (parts.cuh), on mma.sync: how weights come into
// shared memory, what a warp multiplies, and where its results go.
//
// A warp owns 32 tokens x 32 columns. Rows of a packed weight are permuted within 32 so that a lane's results are eight
// neighbouring columns for each of its four tokens: row 8n + 2c + b is column 8c + 2n + b (cuda/split/pack.h).
#pragma once

#include "common/index.cuh"
#include "ptx/copy.cuh"
#include "ptx/matrix.cuh"
#include "split/params.h"
#include "split/parts.cuh"

namespace warpweave::kernels::split {

constexpr int STAGE_DEPTH = 32;             // of k at a time
constexpr int STAGE_PART = STAGE_DEPTH * 2;  // bytes of a part of a row

// Bytes of a row of a stage: an odd multiple of 16.
constexpr __device__ int stage_pitch(int parts) { return parts * STAGE_PART + 16; }

constexpr int WEIGHT_PITCH = stage_pitch(WEIGHT_PARTS);

using Sums = float[2][4][4];  // 16 tokens, 8 rows of the weight, fragment (ptx/mma.cuh)

// Rows of the weight from `column` on, 32 of k from `k` on; a thread keeps to one piece of 16 bytes of every such row.
template <int COLUMNS, int THREADS>
__device__ __forceinline__ void copy_weight(u32 stage, const Weight& weight, i64 depth, int column, int k) {
  constexpr int PIECES = WEIGHT_PARTS * STAGE_PART / 16, ROWS = THREADS / PIECES;
  const int row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
  const f16* const from = static_cast<const f16*>(weight.rows) +
                          (static_cast<i64>(column + row) * WEIGHT_PARTS + piece / (STAGE_DEPTH / 8)) * depth + k +
                          piece % (STAGE_DEPTH / 8) * 8;
#pragma unroll
  for (int r = 0; r < COLUMNS; r += ROWS)
    copy_async<16>(stage + (row + r) * WEIGHT_PITCH + piece * 16, from + r * WEIGHT_PARTS * depth);
}

// sums += 32 rows of `a` times 32 rows of the stage of the weight at `w`, over 32 of k. The tensor core truncates as it
// accumulates, so its sums begin at zero and are added up outside.
template <int PARTS, int A_PITCH, int A_PART>
__device__ __forceinline__ void multiply_stage(Sums& sums, u32 a, u32 w) {
  const int lane = threadIdx.x % 32;
  const u32 a_from = a + lane % 16 * A_PITCH + lane / 16 * 16;
  const u32 w_from = w + (lane / 16 * 8 + lane % 8) * WEIGHT_PITCH + lane / 8 % 2 * 16;
  Sums fresh = {};
#pragma unroll
  for (int k = 0; k < STAGE_DEPTH / 16; ++k) {
    u32 x[2][PARTS][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int part = 0; part < PARTS; ++part)
        load_matrices(x[m][part], a_from + m * 16 * A_PITCH + part * A_PART + k * 32);
    }
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      u32 y[WEIGHT_PARTS][4];
#pragma unroll
      for (int part = 0; part < WEIGHT_PARTS; ++part)
        load_matrices(y[part], w_from + n * 8 * WEIGHT_PITCH + part * STAGE_PART + k * 32);
#pragma unroll
      for (int m = 0; m < 2; ++m) multiply(fresh[m][n], fresh[m][n + 1], x[m], y);
    }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) sums[m][n][r] += fresh[m][n][r];
    }
  }
}

// Factor and bias of eight columns.
struct Constants {
  float factor[8], bias[8];
};
// Where they come from: the packed weight itself.
struct GlobalConstants {
  const Weight& weight;
  __device__ __forceinline__ Constants operator()(int column) const {
    Constants v;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float4 f = *reinterpret_cast<const float4*>(weight.factor + column + i);
      const float4 b = *reinterpret_cast<const float4*>(weight.bias + column + i);
      v.factor[i] = f.x, v.factor[i + 1] = f.y, v.factor[i + 2] = f.z, v.factor[i + 3] = f.w;
      v.bias[i] = b.x, v.bias[i + 1] = b.y, v.bias[i + 2] = b.z, v.bias[i + 3] = b.w;
    }
    return v;
  }
};

// Calls body(row, values): the eight results of this lane, factor and bias applied, for each of its tokens in M tiles of
// 16.
template <int M, class Body>
__device__ __forceinline__ void for_each_token(const float (&sums)[M][4][4], const Constants& constants, const Body& body) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float values[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = sums[m][i / 2][2 * half + i % 2] * constants.factor[i] + constants.bias[i];
      body(m * 16 + half * 8 + static_cast<int>(threadIdx.x % 32) / 4, values);
    }
  }
}

// First of the lane's columns, of the warp's from `column` on.
__device__ __forceinline__ int lane_column(int column) { return column + static_cast<int>(threadIdx.x % 4) * 8; }

// To q, k and v [token, column / HEAD, PARTS, HEAD] as attention reads them; before that RoPE turns the first channels of
// the heads of q and k.
template <int PARTS, int HEAD, int M, class From>
__device__ __forceinline__ void store_heads(const float (&sums)[M][4][4], const HeadsParams& p, const From& constants,
                                            i64 token, int warp_column) {
  const int column = lane_column(warp_column), channel = column % HEAD;
  if (column >= p.n) return;
  const bool rotate = p.rotations && column < p.rotated && channel < p.rotated_channels;
  for_each_token(sums, constants(column), [&](int row, float(&v)[8]) {
    if (token + row >= p.tokens) return;
    if (rotate) {
      const float* const turn =
          p.rotations + (token + row) / p.position_divisor % p.length * p.rotated_channels + channel;
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        if (channel + i >= p.rotated_channels) break;
        const float cosine = turn[i], sine = turn[i + 1], first = v[i] * cosine - v[i + 1] * sine;
        v[i + 1] = v[i] * sine + v[i + 1] * cosine;
        v[i] = first;
      }
    }
    const Parts<PARTS> a(v[0], v[1]), b(v[2], v[3]), c(v[4], v[5]), d(v[6], v[7]);
    f16* const to = static_cast<f16*>(p.y) + (token + row) * PARTS * p.n + column / HEAD * (PARTS * HEAD) + channel;
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
      store_global(to + part * HEAD, a.part[part], b.part[part], c.part[part], d.part[part]);
  });
}

}  // namespace warpweave::kernels::split
