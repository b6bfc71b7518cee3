#include "cuda/split/warp_pack.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <span>

#include "cuda/split/matrices.h"
#include "cuda/split/pack.h"
#include "numeric/half.h"

namespace warpweave::cuda::split {
namespace {

constexpr double kTop = 32768;  // no operand passes it; fp16 ends at 65504
constexpr double kScoreTop =
    2048;                         // of what a channel may give to a score; beyond it q and k are made smaller
constexpr double kLarger = 512;   // weights of q and k in two parts are stored times this
constexpr int kCandidates = 256;  // scales that are tried for a row
constexpr double kFarthest = 0x1p90;  // scales stay well within float32

// A row that is stored times a scale, or (inverse) divided by it.
struct Scaled {
  std::vector<float> row;  // a multiple of 8
  float square;
  bool inverse = false;
};

// Relative error, squared, of a row rounded to 11 bits at a scale. Eight sums, so that the loop vectorises.
float rounding_error(const Scaled& r, float scale) {
  constexpr float kCut = 8193;  // Veltkamp's: 24 - 11 bits go
  std::array<float, 8> errors{};
  const float* const row = r.row.data();
  const std::size_t size = r.row.size();
  for (std::size_t i = 0; i < size; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) {
      const float value = row[i + j] * scale, shifted = value * kCut;
      const float error = shifted - (shifted - value) - value;
      errors[j] += error * error;
    }
  }
  float error = 0;
  for (const float e : errors) error += e;
  return r.square > 0 ? error / (scale * scale * r.square) : 0;
}

// The factor between 2^(-1/2) and 2^(1/2) by which these rows together are best scaled further.
double best_factor(const std::vector<Scaled>& rows, int parts) {
  if (parts == 2) return 1;
  double best = 1;
  float least = INFINITY;
  for (int i = 0; i < kCandidates; ++i) {
    const double factor = std::exp2((i + 0.5) / kCandidates - 0.5);
    float error = 0;
    for (const Scaled& r : rows)
      error += rounding_error(r, static_cast<float>(r.inverse ? 1 / factor : factor));
    if (error < least) least = error, best = factor;
  }
  return best;
}

Scaled scaled(const double* row, std::int64_t k, double scale, bool inverse = false) {
  Scaled r{std::vector<float>(static_cast<std::size_t>((k + 7) / 8 * 8)), 0, inverse};
  for (std::int64_t i = 0; i < k; ++i) {
    const auto value = static_cast<float>(row[i] * scale);
    r.row[static_cast<std::size_t>(i)] = value;
    r.square += value * value;
  }
  return r;
}

double limited(double scale) { return std::clamp(scale, 1 / kFarthest, kFarthest); }

void multiply_row(Matrix& m, std::int64_t r, double scale) {
  for (std::int64_t i = 0; i < m.k; ++i) m.row(r)[i] *= scale;
  m.bias[r] *= scale;
}

// Scales rows of q and k; returns what q k are still to be multiplied by.
float scale_scores(Matrix& m, const graph::AxialAttention& layer, int parts) {
  const std::int64_t rows = m.n / 3;
  const std::int64_t together = layer.rope ? 2 : 1;  // RoPE's pairs have one scale
  const auto most = [&](std::int64_t first) {
    double bound = 0;
    for (std::int64_t r = first; r < first + together; ++r) bound = std::max(bound, row_bound(m, r));
    return bound * (layer.rope ? std::numbers::sqrt2 : 1.0);
  };
  double factor = std::fabs(layer.scale) * std::numbers::log2e, largest = 0;
  for (std::int64_t r = 0; r < rows; r += together)
    largest = std::max(largest, factor * most(r) * most(rows + r));
  const int excess = std::isfinite(largest) && largest > kScoreTop
                         ? static_cast<int>(std::ceil(std::log2(largest / kScoreTop)))
                         : 0;
  factor = std::ldexp(factor, -excess);
  for (std::int64_t r = 0; r < rows; r += together) {
    const double q = most(r), k = most(rows + r);
    if (!(q > 0 && k > 0) || factor == 0) {  // no score comes of it
      for (std::int64_t i = 0; i < together; ++i) multiply_row(m, r + i, 0), multiply_row(m, rows + r + i, 0);
      continue;
    }
    double of_q = limited(std::sqrt(factor) * std::sqrt(k / q)), of_k = factor / of_q;
    std::vector<Scaled> list;
    for (std::int64_t i = 0; i < together; ++i) {
      list.push_back(scaled(m.row(r + i), m.k, of_q));
      list.push_back(scaled(m.row(rows + r + i), m.k, of_k, true));
    }
    const double further = best_factor(list, parts);
    for (std::int64_t i = 0; i < together; ++i) {
      multiply_row(m, r + i, of_q * further);
      multiply_row(m, rows + r + i, of_k / further);
    }
  }
  return std::ldexp(1.0f, excess);
}

// The scale that brings `bound` to the top, by at most a factor of 2 below it.
double scale_to_top(double bound, const double* row, std::int64_t k, int parts) {
  if (!(bound > 0)) return 1;
  const double scale = limited(kTop / std::numbers::sqrt2 / bound);
  return scale * best_factor({scaled(row, k, scale)}, parts);
}

// `in_grid`: rows are channels of the grid; else k are.
void append_core_matrices(std::vector<std::byte>& to, const Matrix& m, bool in_grid, int parts) {
  std::vector<std::uint16_t> matrices(static_cast<std::size_t>(parts * m.n * m.k));
  for (std::int64_t row = 0; row < m.n; ++row) {
    for (std::int64_t i = 0; i < m.k; ++i) {
      const std::int64_t r = in_grid ? warp_place(row) : row, c = in_grid ? i : warp_place(i);
      double rest = m.row(row)[i];
      for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t pair = (part * (m.k / 16) + c / 16) * (m.n / 8) + r / 8;
        const std::uint16_t value = float_to_f16(double_to_float_odd(rest));
        matrices[static_cast<std::size_t>(((pair * 2 + c / 8 % 2) * 8 + r % 8) * 8 + c % 8)] = value;
        rest -= static_cast<double>(f16_to_float(value));
      }
    }
  }
  const auto bytes = std::as_bytes(std::span(matrices));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

void append(std::vector<std::byte>& to, const std::vector<double>& values, bool twice) {
  std::vector<float> list;
  for (std::size_t i = 0; i < values.size(); i += 2) {
    for (int again = 0; again < (twice ? 2 : 1); ++again) {
      list.push_back(static_cast<float>(values[i]));
      list.push_back(static_cast<float>(values[i + 1]));
    }
  }
  const auto bytes = std::as_bytes(std::span(list));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

}  // namespace

WarpPacked pack_warp_layer(const graph::AxialAttention& layer, const weights::LayerWeights& weights,
                           int parts) {
  Matrix qkv = qkv_matrix(layer, weights), out = out_matrix(layer, weights);
  const std::int64_t inner = out.k;
  if (layer.norm.kind == graph::NormKind::layer) {
    for (std::int64_t r = 0; r < qkv.n; ++r) {
      double sum = 0;
      for (std::int64_t i = 0; i < qkv.k; ++i) sum += qkv.row(r)[i];
      for (std::int64_t i = 0; i < qkv.k; ++i) qkv.row(r)[i] -= sum / static_cast<double>(qkv.k);
    }
  }
  if (!layer.rope) std::fill_n(qkv.bias.begin() + inner, inner, 0.0);
  WarpPacked packed;
  packed.score_scale = scale_scores(qkv, layer, parts);
  std::vector<double> masked = out.bias, plain = out.bias, factor;
  for (std::int64_t c = 0; c < inner; ++c) {
    const std::int64_t r = 2 * inner + c;
    for (std::int64_t n = 0; n < out.n; ++n) plain[n] += out.row(n)[c] * qkv.bias[r];
    const double scale = scale_to_top(row_bound(qkv, r), qkv.row(r), qkv.k, parts);
    multiply_row(qkv, r, scale);
    for (std::int64_t n = 0; n < out.n; ++n) out.row(n)[c] /= scale;
  }
  for (std::int64_t n = 0; n < out.n; ++n) {
    double most = 0;
    for (std::int64_t c = 0; c < inner; ++c) most = std::max(most, std::fabs(out.row(n)[c]));
    const double scale = scale_to_top(most, out.row(n), inner, parts);
    multiply_row(out, n, scale);
    masked[n] *= scale, plain[n] *= scale;
    factor.push_back(1 / scale);
  }
  if (parts == 2) {
    for (double& v : std::span(qkv.values).first(static_cast<std::size_t>(2 * inner * qkv.k))) v *= kLarger;
  }
  append_core_matrices(packed.bytes, qkv, false, parts);
  append_core_matrices(packed.bytes, out, true, parts);
  append(packed.bytes, qkv.bias, true);
  append(packed.bytes, factor, false);
  append(packed.bytes, plain, true);
  append(packed.bytes, masked, true);
  return packed;
}

}  // namespace warpweave::cuda::split
