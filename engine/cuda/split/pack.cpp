#include "cuda/split/pack.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cuda/split/matrices.h"
#include "numeric/half.h"

namespace warpweave::cuda::split {
namespace {

constexpr int kTop = 15;       // no operand passes 2^15; fp16 ends at 65504
constexpr int kFarthest = 90;  // powers of two stay well within float32

std::int64_t rounded_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

// The largest s with bound * 2^s <= 2^kTop.
int shift_for(double bound) {
  if (!(bound > 0) || !std::isfinite(bound)) return 0;
  int exponent = 0;
  const double mantissa = std::frexp(bound, &exponent);  // in [1/2, 1)
  return std::clamp(kTop - exponent + (mantissa == 0.5 ? 1 : 0), -kFarthest, kFarthest);
}

// `shift_of_result[r]`: r's result is stored times 2^this; the other operand is stored times 2^shift_of_a.
Operand operand(const Matrix& m, int shift_of_a, const std::vector<int>& shift_of_result) {
  const std::int64_t n = rounded_up(m.n, kColumns), k = rounded_up(m.k, kDepth);
  Operand o;
  o.rows.assign(static_cast<std::size_t>(n * kWeightParts * k), 0);
  o.factor.assign(static_cast<std::size_t>(n), 0.0f);
  o.bias.assign(static_cast<std::size_t>(n), 0.0f);
  for (std::int64_t r = 0; r < m.n; ++r) {
    double most = 0;
    for (std::int64_t i = 0; i < m.k; ++i) most = std::max(most, std::fabs(m.row(r)[i]));
    const int shift = shift_for(most);
    std::uint16_t* const to = o.rows.data() + packed_row(r) * kWeightParts * k;
    for (std::int64_t i = 0; i < m.k; ++i) {
      const double value = std::ldexp(m.row(r)[i], shift);
      to[i] = float_to_f16(double_to_float_odd(value));
      to[k + i] = float_to_f16(double_to_float_odd(value - static_cast<double>(f16_to_float(to[i]))));
    }
    const int result = shift_of_result[static_cast<std::size_t>(r)];
    o.factor[r] = std::ldexp(1.0f, result - shift - shift_of_a);
    o.bias[r] = static_cast<float>(std::ldexp(m.bias[r], result));
  }
  return o;
}

// Of the rows of one of q, k and v.
double bound(const Matrix& m, std::int64_t first, std::int64_t count) {
  double most = 0;
  for (std::int64_t r = first; r < first + count; ++r) most = std::max(most, row_bound(m, r));
  return most;
}

}  // namespace

std::int64_t token_pitch(std::int64_t dim) { return rounded_up(dim, 8); }
std::int64_t head_pitch(std::int64_t head_dim) { return rounded_up(head_dim, 16); }
int token_shift(std::int64_t dim) { return shift_for(std::sqrt(static_cast<double>(dim))); }

Packed pack(const graph::AxialAttention& layer, const weights::LayerWeights& weights) {
  const Matrix qkv = qkv_matrix(layer, weights);
  const std::int64_t rows = qkv.n / 3;
  int shift[3];
  std::vector<int> shifts;
  for (int part = 0; part < 3; ++part) {
    const double turned = layer.rope && part < 2 ? std::numbers::sqrt2 : 1.0;
    shift[part] = shift_for(turned * bound(qkv, part * rows, rows));
    shifts.insert(shifts.end(), static_cast<std::size_t>(rows), shift[part]);
  }
  Packed packed;
  packed.qkv = operand(qkv, token_shift(layer.dim), shifts);
  packed.out =
      operand(out_matrix(layer, weights), shift[2], std::vector<int>(static_cast<std::size_t>(layer.dim), 0));
  packed.score_scale = static_cast<float>(std::ldexp(std::fabs(layer.scale), -shift[0] - shift[1]));
  return packed;
}

}  // namespace warpweave::cuda::split
