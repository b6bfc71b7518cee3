// The last step of an output projection: scale, bias and residual on a lane's accumulators of 8 neighbouring channels.
#pragma once

#include "common/types.cuh"
#include "long/attention_params.h"
#include "ptx/types.cuh"

namespace warpweave::kernels::long_attention {

// Whether a power of two is taken out of each output channel's weights (as in project.cuh).
template <class T>
constexpr bool kScaled = false;
template <>
constexpr bool kScaled<f16> = true;

// Channels `channel` .. + 7 of y, of the accumulators d[0 .. 3][2 half ..].
template <class T>
__device__ __forceinline__ void finish_output(u32 (&y)[4], const float (*d)[4], int half, const u32 (&residual)[4],
                                              const OutputParams& out, int channel) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float pair[2] = {d[j][2 * half], d[j][2 * half + 1]};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if constexpr (kScaled<T>) pair[e] *= out.scale[channel + 2 * j + e];
      if (out.bias) pair[e] += out.bias[channel + 2 * j + e];
    }
    y[j] = Pair<T>::pack(pair[0] + Pair<T>::first(residual[j]), pair[1] + Pair<T>::second(residual[j]));
  }
}

}  // namespace warpweave::kernels::long_attention
