// Mean and deviation of tokens, ahead of a projection that normalises its results instead of its operands
// (long/project_wide.cuh):
//
//   norm(x) W^T = (x W^T - mean (W 1)) / deviation
//
// Where the mean is much larger than the deviation, the difference would cost digits of the sums of the product. Such
// tokens are normalised here, and with them the other tokens of their tile are copied, to `spare`, where the projection
// then reads the tile; their statistics say that there is nothing to do. A token's result does not depend on the tile.
//
// A block has a tile of 128 tokens, a warp one token at a time, kept in registers: mean, then centred squares.
// Limit: bytes, one read of the grid.
#pragma once

#include "long/project_wide_params.h"
#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/types.cuh"

namespace warpweave::kernels::long_sequences {

// The largest mean / deviation of a token that is multiplied as it is: errors of the product's float32 sums, about
// 2e-6 of their largest term, stay below a tenth of the rounding of the type.
template <class T>
constexpr float kMostOffset = 32;
template <>
constexpr float kMostOffset<f16> = 8;

template <class T, int K, bool Centred>
struct TokenStatistics {
  static constexpr int vectors = (K / 8 + 31) / 32;  // of 8 channels, of a lane
  static constexpr int warps = 8, tile = 128;
  static constexpr int at_a_time = vectors > 2 ? 1 : vectors > 1 ? 2 : 4;  // tokens on their way
  static_assert(K % 8 == 0);

  const int lane;

  __device__ __forceinline__ bool has(int i) const { return K % 256 == 0 || (i * 32 + lane) * 8 < K; }

  __device__ __forceinline__ void load(u32 (&v)[vectors][4], const char* token) const {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) v[i][j] = 0;
      if (has(i)) load_global(v[i], token + (i * 32 + lane) * 16);
    }
  }

  static __device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
  }

  __device__ __forceinline__ float2 statistics(const u32 (&v)[vectors][4], float eps) const {
    float mean = 0;
    if constexpr (Centred) {
#pragma unroll
      for (int i = 0; i < vectors; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) mean += Pair<T>::first(v[i][j]) + Pair<T>::second(v[i][j]);
      mean = warp_sum(mean) * (1.0f / K);
    }
    float squares = 0;
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      if (!has(i)) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float a = Pair<T>::first(v[i][j]) - mean, b = Pair<T>::second(v[i][j]) - mean;
        squares += a * a + b * b;
      }
    }
    const float gain = rsqrtf(warp_sum(squares) * (1.0f / K) + eps);
    return {mean * gain, gain};
  }

  // The token, or where it is far off, normalised.
  __device__ __forceinline__ void spare(char* to, const u32 (&v)[vectors][4], float2 s, bool far) const {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      if (!has(i)) continue;
      u32 w[4];
      const float mean = s.x / s.y;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        w[j] = far ? Pair<T>::pack((Pair<T>::first(v[i][j]) - mean) * s.y, (Pair<T>::second(v[i][j]) - mean) * s.y)
                   : v[i][j];
      store_global(to + (i * 32 + lane) * 16, w[0], w[1], w[2], w[3]);
    }
  }
};

template <class T, int K, bool Centred>
__global__ void __launch_bounds__(256, TokenStatistics<T, K, Centred>::vectors <= 6 ? 5 : 2) statistics(const StatisticsParams p) {
  using Tokens = TokenStatistics<T, K, Centred>;
  constexpr int tile = Tokens::tile, at_a_time = Tokens::at_a_time;
  __shared__ float2 found[tile];
  wait_for_previous_grid();
  let_next_grid_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int piece = blockIdx.x / p.tokens.tiles, first = blockIdx.x % p.tokens.tiles * tile;
  const int count = min(tile, p.tokens.length - first);
  const char* x = static_cast<const char*>(p.x) + (p.tokens.first + piece * p.tokens.pitch + first) * (K * 2);
  const i64 token = static_cast<i64>(piece) * p.tokens.length + first;
  const Tokens work{lane};
  bool any = false;
  for (int t = warp * at_a_time; t < count; t += Tokens::warps * at_a_time) {
    u32 v[at_a_time][Tokens::vectors][4];
#pragma unroll
    for (int i = 0; i < at_a_time; ++i) work.load(v[i], x + static_cast<i64>(min(t + i, count - 1)) * (K * 2));
#pragma unroll
    for (int i = 0; i < at_a_time; ++i) {
      const float2 s = work.statistics(v[i], p.eps);
      const bool far = Centred && fabsf(s.x) > kMostOffset<T>;
      any |= far;
      if (lane == 0 && t + i < count) {
        found[t + i] = s;
        reinterpret_cast<float2*>(p.statistics)[token + t + i] = far ? float2{0, 1} : s;
      }
    }
  }
  if constexpr (!Centred) {
    if (threadIdx.x == 0) p.spared[blockIdx.x] = 0;
    return;
  }
  any = __syncthreads_or(any);
  if (threadIdx.x == 0) p.spared[blockIdx.x] = any;
  if (!any) return;
  for (int t = warp; t < count; t += Tokens::warps) {
    u32 v[Tokens::vectors][4];
    work.load(v, x + static_cast<i64>(t) * (K * 2));
    work.spare(static_cast<char*>(p.spare) + (token + t) * (K * 2), v, found[t], fabsf(found[t].x) > kMostOffset<T>);
  }
}

}  // namespace warpweave::kernels::long_sequences
