// LayerNorm, RMSNorm, or a plain copy, of any number of channels.
//
//   layer: (x - mean) / sqrt(variance + eps) * weight + bias      rms: x / sqrt(mean(x^2) + eps) * weight
//
// A block owns one token at a time and reads it a few times. The mean is held as two numbers, so that one of 1e4
// times the spread costs no digits.
#pragma once

#include "common/index.cuh"
#include "common/reduce.cuh"

namespace warpweave::kernels {

enum class NormKind { none, layer, rms };

namespace reference {

constexpr int kNormThreads = 128;

// Over the block; `partial` is shared memory of one float per warp.
__device__ inline float block_sum(float v, float* partial) {
  v = sum_lanes(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  float total = 0.0f;
  for (int w = 0; w < kNormThreads / 32; ++w) total += partial[w];
  return total;
}

template <class T, NormKind KIND>
__global__ void __launch_bounds__(kNormThreads, 8) norm(const NormParams p) {
  __shared__ float partial[kNormThreads / 32];
  const float dim = static_cast<float>(p.dim);
  for (i64 token = blockIdx.x; token < p.tokens; token += gridDim.x) {
    const T* x = static_cast<const T*>(p.x) + cell_of(p.cells, token) * p.dim;
    T* y = static_cast<T*>(p.y) + token * p.pitch;
    T* copy = p.copy ? static_cast<T*>(p.copy) + cell_of(p.cells, token) * p.dim : nullptr;

    float mean = 0.0f, rest = 0.0f, gain = 1.0f;  // the mean is mean + rest
    if constexpr (KIND == NormKind::layer) {
      float sum = 0.0f;
      for (i64 d = threadIdx.x; d < p.dim; d += kNormThreads) sum += to_float(x[d]);
      mean = block_sum(sum, partial) / dim;
      sum = 0.0f;
      for (i64 d = threadIdx.x; d < p.dim; d += kNormThreads) sum += to_float(x[d]) - mean;
      rest = block_sum(sum, partial) / dim;
    }
    if constexpr (KIND != NormKind::none) {
      float squares = 0.0f;
      for (i64 d = threadIdx.x; d < p.dim; d += kNormThreads) {
        const float v = to_float(x[d]) - mean - rest;
        squares += v * v;
      }
      gain = 1.0f / sqrtf(block_sum(squares, partial) / dim + p.eps);
    }
#pragma unroll 1
    for (i64 d = threadIdx.x; d < p.pitch; d += kNormThreads) {
      float v = 0.0f;
      if (d < p.dim) {
        if (copy) copy[d] = x[d];
        v = (to_float(x[d]) - mean - rest) * gain;
        if (p.weight) v *= p.weight[d];
        if (p.bias) v += p.bias[d];
      }
      y[d] = from_float<T>(v);
    }
  }
}

}  // namespace reference
}  // namespace warpweave::kernels
