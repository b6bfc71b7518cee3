// Activations of the feed-forward layer.
#pragma once

namespace warpweave::kernels {

enum class Activation { none, gelu, gelu_tanh, relu, silu };

template <Activation A>
__device__ __forceinline__ float activate(float x) {
  if constexpr (A == Activation::gelu) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  if constexpr (A == Activation::gelu_tanh) {  // Hendrycks and Gimpel 2016
    return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
  }
  if constexpr (A == Activation::relu) return x < 0.0f ? 0.0f : x;  // keeps NaN
  if constexpr (A == Activation::silu) return x / (1.0f + expf(-x));
  return x;
}

}  // namespace warpweave::kernels
