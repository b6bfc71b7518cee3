// Mean and deviation of tokens that pass through shared memory 64 channels at a time, for a projection that applies the
// norm to its results (long/project_wide.cuh).
//
// A warp has 16 tokens, rows of 128 bytes swizzled by the copy engine; lanes 2 r and 2 r + 1 take 32 channels each of
// token r. Sums are of channels less the mean of the token's first 64: if the first channels are unlike the others then
// the deviation is as large as the difference, so that no more than a factor of 1 + K / 64 of float32's digits is lost.
#pragma once

#include "ptx/math.cuh"
#include "ptx/matrix.cuh"
#include "ptx/types.cuh"

namespace warpweave::kernels::long_sequences {

// Whether a mean is so many deviations from zero that a token is normalised before it is multiplied: errors of the
// float32 sums of a product, about 2e-6 of their largest term, stay below a tenth of the rounding of the type.
template <class T>
__device__ __forceinline__ bool is_far(float offset);
template <>
__device__ __forceinline__ bool is_far<bf16>(float offset) {
  return fabsf(offset) > 64;
}
template <>
__device__ __forceinline__ bool is_far<f16>(float offset) {
  return fabsf(offset) > 16;
}

// Centred: else the mean counts as zero.
template <class T, int K, bool Centred>
struct Moments {
  float shift, sum, squares;

  // Of the lane's 32 channels from `channel` on, 8 at a time.
  static __device__ __forceinline__ void load(u32 (&v)[4], u32 rows, int i) {
    const int lane = threadIdx.x % 32, row = lane / 2;
    load_shared(v, rows + row * 128 + ((lane % 2 * 4 + i) ^ (row % 8)) * 16);
  }
  static __device__ __forceinline__ bool has(int channel, int i) {
    return K % 64 == 0 || channel + static_cast<int>(threadIdx.x % 2) * 32 + i * 8 < K;
  }

  // With the first 64 channels, before they are added.
  __device__ __forceinline__ void begin(u32 rows) {
    shift = sum = squares = 0;
    if constexpr (Centred) {
      float first = 0;
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        u32 v[4];
        load(v, rows, i);  // zeros past the end
#pragma unroll
        for (int j = 0; j < 4; ++j) first += Pair<T>::first(v[j]) + Pair<T>::second(v[j]);
      }
      shift = (first + __shfl_xor_sync(0xffffffffu, first, 1)) * (1.0f / (K < 64 ? K : 64));
    }
  }

  __device__ __forceinline__ void add(u32 rows, int channel) {
#pragma unroll 2  // there are few registers
    for (int i = 0; i < 4; ++i) {
      u32 v[4];
      load(v, rows, i);
      if (!has(channel, i)) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float a = Pair<T>::first(v[j]) - shift, b = Pair<T>::second(v[j]) - shift;
        if constexpr (Centred) sum += a + b;
        squares += a * a + b * b;
      }
    }
  }

  // Mean over deviation and one over deviation of token lane / 2.
  __device__ __forceinline__ float2 found(float eps) const {
    const float total = sum + __shfl_xor_sync(0xffffffffu, sum, 1),
                all = squares + __shfl_xor_sync(0xffffffffu, squares, 1);
    const float rest = total * (1.0f / K), variance = fmaxf(all * (1.0f / K) - rest * rest, 0.0f);
    const float gain = rsqrt_approx(variance + eps);
    return {(shift + rest) * gain, gain};
  }
};

}  // namespace warpweave::kernels::long_sequences
