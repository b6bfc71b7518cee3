// y = act(a w^T + bias) + residual, the plain way.
//
// A block of 16 x 16 threads owns 16 tokens and 16 outputs, one each, and takes k in steps of 16 through shared
// memory (2 KiB). The sum over a step is added to the total as one number, which keeps the error of long sums
// down. Limit: fp32 arithmetic.
#pragma once

#include "common/activation.cuh"
#include "common/index.cuh"

namespace warpweave::kernels::reference {

constexpr int kTile = 16;

template <class T, Activation A>
__global__ void __launch_bounds__(kTile* kTile) linear(const LinearParams p) {
  __shared__ float a[kTile][kTile + 1];
  __shared__ float w[kTile][kTile + 1];
  const i64 tiles_n = (p.n + kTile - 1) / kTile, tiles_t = (p.tokens + kTile - 1) / kTile;
  const int i = threadIdx.x / kTile, j = threadIdx.x % kTile;
  for (i64 tile = blockIdx.x; tile < tiles_n * tiles_t; tile += gridDim.x) {
    const i64 token0 = tile / tiles_n * kTile, n0 = tile % tiles_n * kTile;
    float total = 0.0f;
    for (i64 k0 = 0; k0 < p.k; k0 += kTile) {
      const bool in_k = k0 + j < p.k;
      a[i][j] = in_k && token0 + i < p.tokens
                    ? to_float(static_cast<const T*>(p.a)[(token0 + i) * p.k + k0 + j])
                    : 0.0f;
      w[i][j] = in_k && n0 + i < p.n ? to_float(static_cast<const T*>(p.w)[(n0 + i) * p.k + k0 + j]) : 0.0f;
      __syncthreads();
      float step = 0.0f;
      for (int k = 0; k < kTile; ++k) step += a[i][k] * w[j][k];
      total += step;
      __syncthreads();
    }
    const i64 token = token0 + i, n = n0 + j;
    if (token < p.tokens && n < p.n) {
      const i64 at = cell_of(p.cells, token) * p.n + n;
      float v = activate<A>(total + (p.bias ? p.bias[n] : 0.0f));
      if (p.residual) v += to_float(static_cast<const T*>(p.residual)[at]);
      static_cast<T*>(p.y)[at] = from_float<T>(v);
    }
  }
}

}  // namespace warpweave::kernels::reference
