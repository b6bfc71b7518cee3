// LayerNorm and RMSNorm of rows (cells of the grid), and the plain gathering of rows where there is no norm.
#pragma once

#include "cpu/fused/kernels.h"

namespace warpweave::cpu::fused::WARPWEAVE_ISA {

// The corrected two-pass mean: the rounded mean m is subtracted first, which is nearly exact where the spread
// is small against m, and the mean of what remains is the correction that m lacks. It costs nothing extra,
// since the second pass sums the squares anyhow: var = mean(d^2) - mean(d)^2 with a mean(d) that is only
// rounding.
WARPWEAVE_INLINE void layer_norm_row(const NormRows& g, const float* x, float* out) {
  const float inverse = 1.0f / float(g.channels);
  V s0 = zero(), s1 = zero();
  std::int64_t c = 0;
  for (; c + 2 * kLanes <= g.channels; c += 2 * kLanes) {
    s0 = add(s0, load(x + c));
    s1 = add(s1, load(x + c + kLanes));
  }
  for (; c < g.channels; c += kLanes) s0 = add(s0, load_part(x + c, g.channels - c));
  const V mean = broadcast(sum(add(s0, s1)) * inverse);

  V d0 = zero(), d1 = zero(), q0 = zero(), q1 = zero();
  for (c = 0; c + 2 * kLanes <= g.channels; c += 2 * kLanes) {
    const V a = sub(load(x + c), mean), b = sub(load(x + c + kLanes), mean);
    d0 = add(d0, a), d1 = add(d1, b);
    q0 = fma(a, a, q0), q1 = fma(b, b, q1);
  }
  for (; c < g.channels; c += kLanes) {
    const std::int64_t n = g.channels - c;
    const V a = keep_part(sub(load_part(x + c, n), mean), n);
    d0 = add(d0, a);
    q0 = fma(a, a, q0);
  }
  const float left = sum(add(d0, d1)) * inverse;
  float variance = sum(add(q0, q1)) * inverse - left * left;
  variance = variance < 0 ? 0 : variance;  // NaN stays
  const V correction = broadcast(left), scale = broadcast(1.0f / __builtin_sqrtf(variance + g.eps));

  for (c = 0; c < g.channels; c += kLanes) {
    const std::int64_t n = g.channels - c;
    if (n >= kLanes) {
      const V d = mul(sub(sub(load(x + c), mean), correction), scale);
      store(out + c, fma(d, load(g.weight + c), load(g.bias + c)));
    } else {
      const V d = mul(sub(sub(load_part(x + c, n), mean), correction), scale);
      store_part(out + c, fma(d, load_part(g.weight + c, n), load_part(g.bias + c, n)), n);
    }
  }
}

WARPWEAVE_INLINE void rms_norm_row(const NormRows& g, const float* x, float* out) {
  V q = zero();
  for (std::int64_t c = 0; c < g.channels; c += kLanes) {
    const V a = load_part(x + c, g.channels - c);
    q = fma(a, a, q);
  }
  const V scale = broadcast(1.0f / __builtin_sqrtf(sum(q) / float(g.channels) + g.eps));
  for (std::int64_t c = 0; c < g.channels; c += kLanes) {
    const std::int64_t n = g.channels - c;
    store_part(out + c, mul(mul(load_part(x + c, n), scale), load_part(g.weight + c, n)), n);
  }
}

WARPWEAVE_INLINE void copy_row(const NormRows& g, const float* x, float* out) {
  for (std::int64_t c = 0; c < g.channels; c += kLanes)
    store_part(out + c, load_part(x + c, g.channels - c), g.channels - c);
}

static void norm(const NormRows& g) {
  // Rows of a column are far apart and the hardware does not guess them: ask ahead.
  constexpr std::int64_t kAhead = 4;
  for (std::int64_t i = 0; i < g.m; ++i) {
    if (i + kAhead < g.m) {
      const char* next = reinterpret_cast<const char*>(g.x + g.rows[i + kAhead]);
      for (std::int64_t b = 0; b < g.channels * 4 && b < 4096; b += 64) __builtin_prefetch(next + b);
    }
    const float* x = g.x + g.rows[i];
    float* out = g.out + g.out_rows[i];
    switch (g.type) {
      case NormType::layer:
        layer_norm_row(g, x, out);
        break;
      case NormType::rms:
        rms_norm_row(g, x, out);
        break;
      case NormType::none:
        copy_row(g, x, out);
        break;
    }
  }
}

}  // namespace warpweave::cpu::fused::WARPWEAVE_ISA
