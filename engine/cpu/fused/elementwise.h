// What is done to every number by itself: activations, rounding to 16 bits, sums; and the rotation of RoPE.
#pragma once

#include "cpu/fused/exp.h"
#include "cpu/fused/kernels.h"

namespace warpweave::cpu::fused::WARPWEAVE_ISA {

constexpr float kLog2E = 1.44269504088896341f;

// x * Phi(x), Phi the normal distribution function. With a = |x|, log2 of the tail Phi(-a) is smooth and
// close to a parabola: a polynomial of degree 8, fitted (minimax of the error of the result; 1.4e-8 for a <=
// 6) and falling on past the fitted range, so that the tail goes on to zero.
WARPWEAVE_INLINE V gelu(V x) {
  const V a = min(abs(x), broadcast(20.0f));
  V p = broadcast(-2.2758706563763553e-06f);
  p = fma(p, a, broadcast(3.296800423413515e-05f));
  p = fma(p, a, broadcast(-0.0001572787296026945f));
  p = fma(p, a, broadcast(-0.00020247904467396438f));
  p = fma(p, a, broadcast(0.007142781745642424f));
  p = fma(p, a, broadcast(-0.052546437829732895f));
  p = fma(p, a, broadcast(-0.45919305086135864f));
  p = fma(p, a, broadcast(-1.1511069536209106f));
  p = fma(p, a, broadcast(-0.9999999403953552f));
  const V tail = exp2(p);
  return mul(x, where_less(x, zero(), tail, sub(broadcast(1.0f), tail)));
}

// x / (1 + 2^-y): x * sigmoid(y * ln 2).
WARPWEAVE_INLINE V times_sigmoid2(V x, V y) { return div(x, add(broadcast(1.0f), exp2(sub(zero(), y)))); }
WARPWEAVE_INLINE V silu(V x) { return times_sigmoid2(x, mul(x, broadcast(kLog2E))); }
// 0.5 x (1 + tanh(u)) = x * sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
WARPWEAVE_INLINE V gelu_tanh(V x) {
  const V cube = mul(mul(x, x), x);
  const V u = fma(cube, broadcast(0.044715f), x);
  return times_sigmoid2(x, mul(u, broadcast(2 * 0.797884560802865356f * kLog2E)));
}
// NaN stays NaN (max gives its second operand).
WARPWEAVE_INLINE V relu(V x) { return max(zero(), x); }

template <class F>
WARPWEAVE_INLINE void map(float* x, std::int64_t n, const F& f) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, f(load(x + i)));
  if (i < n) store_part(x + i, f(load_part(x + i, n - i)), n - i);
}

static void activate(ActivationType type, float* x, std::int64_t n) {
  switch (type) {
    case ActivationType::gelu:
      map(x, n, [](V v) { return gelu(v); });
      break;
    case ActivationType::gelu_tanh:
      map(x, n, [](V v) { return gelu_tanh(v); });
      break;
    case ActivationType::relu:
      map(x, n, [](V v) { return relu(v); });
      break;
    case ActivationType::silu:
      map(x, n, [](V v) { return silu(v); });
      break;
  }
}

static void round_array(Rounding rounding, float* x, std::int64_t n) {
  if (rounding == Rounding::bf16) map(x, n, [](V v) { return round_bf16(v); });
  if (rounding == Rounding::fp16) map(x, n, [](V v) { return round_fp16(v); });
}

static void add_arrays(const float* a, const float* b, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const std::int64_t left = n - i;
    store_part(out + i, add(load_part(a + i, left), load_part(b + i, left)), left);
  }
}

static void rotate(const RotateRows& g) {
  for (std::int64_t i = 0; i < g.m; ++i) {
    const float* cosine = g.cosine + g.positions[i] * g.pairs;
    const float* sine = g.sine + g.positions[i] * g.pairs;
    for (std::int64_t h = 0; h < g.heads; ++h) {
      float* low = g.x + g.rows[i] + h * g.head_dim;
      float* high = low + g.pairs;
      for (std::int64_t c = 0; c < g.pairs; c += kLanes) {
        const std::int64_t n = g.pairs - c;
        const V a = load_part(low + c, n), b = load_part(high + c, n);
        const V co = load_part(cosine + c, n), si = load_part(sine + c, n);
        store_part(low + c, fnma(b, si, mul(a, co)), n);
        store_part(high + c, fma(a, si, mul(b, co)), n);
      }
    }
  }
}

}  // namespace warpweave::cpu::fused::WARPWEAVE_ISA
