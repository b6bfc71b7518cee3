// LayerNorm and RMSNorm of rows (cells of the grid), and the plain gathering of rows where there is no norm.
#pragma once

#include "cpu/fused/kernels.h"

namespace warpweave::cpu::fused::WARPWEAVE_ISA {

// The corrected two-pass mean: the rounded mean m is subtracted first, which is nearly exact where the spread
// is small against m, and the mean of what remains is the correction that m lacks. It costs nothing extra,
// since the second pass sums the squares anyhow: var = mean(d^2) - mean(d)^2 with a mean(d) that is only
// rounding.
//
// R rows at a time: a row by itself is a chain of waiting.
template <int R>
WARPWEAVE_INLINE void layer_norm_rows(const NormRows& g, std::int64_t i0) {
  const float inverse = 1.0f / float(g.channels);
  const std::int64_t whole = g.channels / kLanes * kLanes, rest = g.channels - whole;
  const float* x[R];
  float* out[R];
  V mean[R], scale[R], correction[R], d[R], q[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    x[r] = g.x + g.rows[i0 + r], out[r] = g.out + g.out_rows[i0 + r];
    d[r] = q[r] = mean[r] = zero();
  }

  for (std::int64_t c = 0; c < whole; c += kLanes) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) mean[r] = add(mean[r], load(x[r] + c));
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    if (rest) mean[r] = add(mean[r], load_part(x[r] + whole, rest));
    mean[r] = broadcast(sum(mean[r]) * inverse);
  }

  for (std::int64_t c = 0; c < whole; c += kLanes) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const V a = sub(load(x[r] + c), mean[r]);
      d[r] = add(d[r], a);
      q[r] = fma(a, a, q[r]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    if (rest) {
      const V a = keep_part(sub(load_part(x[r] + whole, rest), mean[r]), rest);
      d[r] = add(d[r], a);
      q[r] = fma(a, a, q[r]);
    }
    const float left = sum(d[r]) * inverse;
    float variance = sum(q[r]) * inverse - left * left;
    variance = variance < 0 ? 0 : variance;  // NaN stays
    correction[r] = broadcast(left);
    scale[r] = broadcast(1.0f / __builtin_sqrtf(variance + g.eps));
  }

  for (std::int64_t c = 0; c < whole; c += kLanes) {
    const V weight = load(g.weight + c), bias = load(g.bias + c);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const V a = mul(sub(sub(load(x[r] + c), mean[r]), correction[r]), scale[r]);
      store(out[r] + c, fma(a, weight, bias));
    }
  }
  if (!rest) return;
  const V weight = load_part(g.weight + whole, rest), bias = load_part(g.bias + whole, rest);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const V a = mul(sub(sub(load_part(x[r] + whole, rest), mean[r]), correction[r]), scale[r]);
    store_part(out[r] + whole, fma(a, weight, bias), rest);
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

// Rows of a column are far apart and the hardware does not guess them: ask ahead.
WARPWEAVE_INLINE void prefetch_row(const NormRows& g, std::int64_t i) {
  if (i >= g.m) return;
  const char* p = reinterpret_cast<const char*>(g.x + g.rows[i]);
  for (std::int64_t b = 0; b < g.channels * 4 && b < 4096; b += 64) __builtin_prefetch(p + b);
}

static void norm(const NormRows& g) {
  constexpr int kRows = 4;
  std::int64_t i = 0;
  for (; i + kRows <= g.m && g.type == NormType::layer; i += kRows) {
    for (int r = 0; r < kRows; ++r) prefetch_row(g, i + kRows + r);
    layer_norm_rows<kRows>(g, i);
  }
  for (; i < g.m; ++i) {
    prefetch_row(g, i + kRows);
    const float* x = g.x + g.rows[i];
    float* out = g.out + g.out_rows[i];
    switch (g.type) {
      case NormType::layer:
        layer_norm_rows<1>(g, i);
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
