// One sequence through an axial attention layer in float64 on the CPU: plain loops, nothing folded.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/resident/problem.h"

namespace warpweave::cuda::resident {

// x and y are [length, dim]; `mask` is null or [length]. `round` is applied to every tensor that PyTorch
// would store in the 16-bit type (the identity for the reference itself), so that the same loops tell what
// error PyTorch makes.
template <class Round>
void attention_reference(const Problem& p, const Tensors& t, int length, const double* x,
                         const unsigned char* mask, double* y, Round&& round) {
  const int D = p.dim, hd = p.head_dim, inner = p.heads * hd;
  std::vector<double> n(static_cast<std::size_t>(length) * D),
      qkv(static_cast<std::size_t>(length) * 3 * inner), o(static_cast<std::size_t>(length) * inner),
      s(length);
  for (int i = 0; i < length; ++i) {
    const double* row = x + static_cast<std::size_t>(i) * D;
    double mean = 0, var = 0;
    if (p.norm == Norm::layer)
      for (int d = 0; d < D; ++d) mean += row[d] / D;
    for (int d = 0; d < D; ++d) var += (row[d] - mean) * (row[d] - mean) / D;
    const double scale = p.norm == Norm::none ? 1 : 1 / std::sqrt(var + p.eps);
    for (int d = 0; d < D; ++d) {
      double v = (row[d] - mean) * scale;
      if (t.norm_weight) v *= round(t.norm_weight[d]);
      if (t.norm_bias) v += round(t.norm_bias[d]);
      n[static_cast<std::size_t>(i) * D + d] = p.norm == Norm::none ? v : round(v);
    }
  }
  std::vector<double> w(D);
  for (int r = 0; r < 3 * inner; ++r) {
    for (int d = 0; d < D; ++d) w[d] = round(t.qkv_weight[static_cast<std::size_t>(r) * D + d]);
    for (int i = 0; i < length; ++i) {
      double v = t.qkv_bias ? round(t.qkv_bias[r]) : 0.0;
      for (int d = 0; d < D; ++d) v += w[d] * n[static_cast<std::size_t>(i) * D + d];
      qkv[static_cast<std::size_t>(i) * 3 * inner + r] = round(v);
    }
  }
  if (p.rope_dims > 0)
    for (int i = 0; i < length; ++i)
      for (int h = 0; h < 2 * p.heads; ++h)
        for (int c = 0; c < p.rope_dims / 2; ++c) {
          double* head = qkv.data() + static_cast<std::size_t>(i) * 3 * inner + h * hd;
          double& a = head[p.rope_half ? c : 2 * c];
          double& b = head[p.rope_half ? c + p.rope_dims / 2 : 2 * c + 1];
          const double angle = i * std::pow(p.rope_theta, -2.0 * c / p.rope_dims);
          const double ra = a * std::cos(angle) - b * std::sin(angle),
                       rb = b * std::cos(angle) + a * std::sin(angle);
          a = round(ra), b = round(rb);
        }
  for (int h = 0; h < p.heads; ++h)
    for (int i = 0; i < length; ++i) {
      const double* q = qkv.data() + static_cast<std::size_t>(i) * 3 * inner + h * hd;
      double top = -INFINITY, sum = 0;
      for (int j = 0; j < length; ++j) {
        s[j] = -INFINITY;
        if ((mask && !mask[j]) || (p.causal && j > i)) continue;
        const double* k = qkv.data() + static_cast<std::size_t>(j) * 3 * inner + inner + h * hd;
        double v = 0;
        for (int c = 0; c < hd; ++c) v += q[c] * k[c];
        s[j] = v * p.scale;
        top = std::max(top, s[j]);
      }
      std::vector<double> acc(hd, 0.0);
      for (int j = 0; j < length; ++j) {
        if (s[j] == -INFINITY) continue;
        const double e = round(std::exp(s[j] - top));
        sum += e;
        const double* v = qkv.data() + static_cast<std::size_t>(j) * 3 * inner + 2 * inner + h * hd;
        for (int c = 0; c < hd; ++c) acc[c] += e * v[c];
      }
      for (int c = 0; c < hd; ++c)
        o[static_cast<std::size_t>(i) * inner + h * hd + c] = sum > 0 ? round(acc[c] / sum) : 0.0;
    }
  std::vector<double> wo(inner);
  for (int d = 0; d < D; ++d) {
    for (int c = 0; c < inner; ++c) wo[c] = round(t.out_weight[static_cast<std::size_t>(d) * inner + c]);
    for (int i = 0; i < length; ++i) {
      double v = t.out_bias ? round(t.out_bias[d]) : 0.0;
      for (int c = 0; c < inner; ++c) v += o[static_cast<std::size_t>(i) * inner + c] * wo[c];
      v = round(v);
      if (p.residual) v = round(v + x[static_cast<std::size_t>(i) * D + d]);
      y[static_cast<std::size_t>(i) * D + d] = v;
    }
  }
}

}  // namespace warpweave::cuda::resident
