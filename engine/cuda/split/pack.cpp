#include "cuda/split/pack.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

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

// Rows of a weight before they are cut into parts.
struct Matrix {
  std::int64_t n, k;
  std::vector<double> values, bias;
  Matrix(std::int64_t rows, std::int64_t columns)
      : n(rows),
        k(columns),
        values(static_cast<std::size_t>(rows * columns)),
        bias(static_cast<std::size_t>(rows)) {}
  double* row(std::int64_t r) { return values.data() + r * k; }
  const double* row(std::int64_t r) const { return values.data() + r * k; }
};

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

// Where channel c of a packed head of q or k comes from: RoPE's pairs are neighbours.
std::int64_t source(const graph::AxialAttention& layer, std::int64_t c) {
  if (!layer.rope || layer.rope->style != graph::Rope::Style::half || c >= layer.rope->dims) return c;
  return c / 2 + c % 2 * (layer.rope->dims / 2);
}

Matrix qkv_matrix(const graph::AxialAttention& layer, const weights::LayerWeights& weights) {
  const float* const weight = weights.find("qkv.weight");
  const float* const bias = weights.find("qkv.bias");
  const float* const gain = weights.find("norm.weight");
  const float* const offset = weights.find("norm.bias");
  const std::int64_t pitch = head_pitch(layer.head_dim);
  Matrix m(3 * layer.heads * pitch, layer.dim);
  for (std::int64_t part = 0; part < 3; ++part) {
    const double sign = part == 0 && layer.scale < 0 ? -1 : 1;  // kernels take a positive scale
    for (std::int64_t head = 0; head < layer.heads; ++head) {
      for (std::int64_t c = 0; c < layer.head_dim; ++c) {
        const std::int64_t from =
            (part * layer.heads + head) * layer.head_dim + (part == 2 ? c : source(layer, c));
        const std::int64_t to = (part * layer.heads + head) * pitch + c;
        double sum = bias ? bias[from] : 0.0;
        for (std::int64_t i = 0; i < layer.dim; ++i) {
          const double w = weight[from * layer.dim + i];
          if (offset) sum += w * offset[i];
          m.row(to)[i] = sign * w * (gain ? gain[i] : 1.0f);
        }
        m.bias[to] = sign * sum;
      }
    }
  }
  return m;
}

Matrix out_matrix(const graph::AxialAttention& layer, const weights::LayerWeights& weights) {
  const float* const weight = weights.find("out.weight");
  const float* const bias = weights.find("out.bias");
  const std::int64_t pitch = head_pitch(layer.head_dim);
  Matrix m(layer.dim, layer.heads * pitch);
  for (std::int64_t n = 0; n < layer.dim; ++n) {
    for (std::int64_t c = 0; c < layer.inner(); ++c)
      m.row(n)[c / layer.head_dim * pitch + c % layer.head_dim] = weight[n * layer.inner() + c];
    m.bias[n] = bias ? bias[n] : 0.0;
  }
  return m;
}

// Of the rows of one of q, k and v.
double bound(const Matrix& m, std::int64_t first, std::int64_t count) {
  double most = 0;
  for (std::int64_t r = first; r < first + count; ++r) {
    double square = 0;
    for (std::int64_t i = 0; i < m.k; ++i) square += m.row(r)[i] * m.row(r)[i];
    most = std::max(most, std::sqrt(square * static_cast<double>(m.k)) + std::fabs(m.bias[r]));
  }
  return most;
}

// `in_grid`: rows are channels of the grid; else k are.
void append_core_matrices(std::vector<std::byte>& to, const Operand& o, std::int64_t rows, std::int64_t k,
                          bool in_grid) {
  const std::int64_t depth = rounded_up(k, kDepth);
  std::vector<std::uint16_t> matrices(static_cast<std::size_t>(kWeightParts * rows * depth));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t part = 0; part < kWeightParts; ++part) {
      for (std::int64_t i = 0; i < depth; ++i) {
        const std::int64_t r = in_grid ? warp_place(row) : row, c = in_grid ? i : warp_place(i);
        const std::int64_t pair = (part * (depth / 16) + c / 16) * (rows / 8) + r / 8;
        matrices[static_cast<std::size_t>(((pair * 2 + c / 8 % 2) * 8 + r % 8) * 8 + c % 8)] =
            o.rows[static_cast<std::size_t>((packed_row(row) * kWeightParts + part) * depth + i)];
      }
    }
  }
  const auto bytes = std::as_bytes(std::span(matrices));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

void append(std::vector<std::byte>& to, const std::vector<float>& values, std::int64_t count) {
  const auto bytes = std::as_bytes(std::span(values).first(static_cast<std::size_t>(count)));
  to.insert(to.end(), bytes.begin(), bytes.end());
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

std::vector<std::byte> warp_layer(const Packed& packed, std::int64_t dim, std::int64_t inner) {
  std::vector<std::byte> bytes;
  append_core_matrices(bytes, packed.qkv, 3 * inner, dim, false);
  append_core_matrices(bytes, packed.out, dim, inner, true);
  append(bytes, packed.qkv.factor, 3 * inner);
  append(bytes, packed.qkv.bias, 3 * inner);
  append(bytes, packed.out.factor, dim);
  append(bytes, packed.out.bias, dim);
  return bytes;
}

}  // namespace warpweave::cuda::split
