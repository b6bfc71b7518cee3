#include "cuda/composed/wide_pack.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "cuda/fp16_range.h"
#include "cuda/long/projection.h"
#include "warpweave/tensor.h"

namespace warpweave::cuda {
namespace {

// `row`, whose sum is nearly zero, rounded so that the sum of what is stored is exactly zero: elements that
// are nearly as near to their other neighbour go there; what is left, less than the last digit of the largest
// ones, is spread over the smallest.
void round_to_zero_sum(std::span<float> row, DType type) {
  const std::vector<float> exact(row.begin(), row.end());
  const Tensor rounded = Tensor::from({static_cast<std::int64_t>(row.size())}, exact).to(type).to(DType::f32);
  const auto values = rounded.values<float>();
  std::copy(values.begin(), values.end(), row.begin());
  double sum = 0;
  for (const float v : row) sum += v;
  if (!std::isfinite(sum)) return;
  const int digits = type == DType::bf16 ? 8 : 11, least = type == DType::bf16 ? -133 : -24;
  const auto last_digit = [&](double v) {
    int exponent = 0;
    std::frexp(v, &exponent);
    return std::ldexp(1.0, v == 0 ? least : std::max(exponent - digits, least));
  };
  const auto change = [&](std::size_t i, double to) {
    sum += to - row[i];
    row[i] = static_cast<float>(to);
  };
  // What it costs, in squared error, to bring the sum nearer by one.
  struct Neighbour {
    double cost, to;
    std::size_t i;
  };
  std::vector<Neighbour> neighbours;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double step = last_digit(row[i]), to = row[i] - std::copysign(step, sum), off = row[i] - exact[i];
    if (off * sum > 0 && last_digit(to) <= step) neighbours.push_back({step - 2 * std::fabs(off), to, i});
  }
  std::sort(neighbours.begin(), neighbours.end(), [](const Neighbour& a, const Neighbour& b) {
    return a.cost != b.cost ? a.cost < b.cost : a.i < b.i;
  });
  for (const Neighbour& n : neighbours)
    if (std::fabs(sum + (n.to - row[n.i])) < std::fabs(sum)) change(n.i, n.to);
  std::vector<std::size_t> order(row.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto smaller = [&](std::size_t a, std::size_t b) {
    return std::fabs(row[a]) != std::fabs(row[b]) ? std::fabs(row[a]) < std::fabs(row[b]) : a < b;
  };
  // The smallest, and where their last digits grow too large on the way, all of them.
  auto end = order.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(order.size(), 16));
  for (int pass = 0; pass < 10 && sum != 0; ++pass) {
    if (pass == 5) end = order.end();
    if (pass % 5 == 0) std::partial_sort(order.begin(), end, order.end(), smaller);
    for (auto i = order.begin(); i != end && sum != 0; ++i) {
      // Of the first pass each gets its share, of the others what is left.
      const double share = pass == 0 ? sum / static_cast<double>(end - i) : sum, wanted = row[*i] - share,
                   step = last_digit(wanted), to = std::nearbyint(wanted / step) * step;
      if (std::fabs(sum + (to - row[*i])) < std::fabs(sum)) change(*i, to);
    }
  }
}

}  // namespace

PackedProjection pack_qkv(const WideShape& shape, const WideWeights& weights, Precision precision) {
  const auto dim = static_cast<std::size_t>(shape.dim), rows = weights.qkv.size() / dim;
  PackedProjection packed;
  packed.weight.resize(rows * dim);
  packed.bias.assign(rows, 0.0f);
  for (std::size_t row = 0; row < rows; ++row) {
    double bias = weights.qkv_bias.empty() ? 0.0 : weights.qkv_bias[row];
    for (std::size_t k = 0; k < dim; ++k) {
      const double w = weights.qkv[row * dim + k];
      packed.weight[row * dim + k] =
          static_cast<float>(w * (weights.norm_weight ? weights.norm_weight[k] : 1.0));
      if (weights.norm_bias) bias += w * weights.norm_bias[k];
    }
    packed.bias[row] = static_cast<float>(bias);
  }
  const bool centred = shape.norm == graph::NormKind::layer;
  if (centred) long_sequences::centre_rows(packed.weight, static_cast<int>(dim));
  const int exponent = exponent_taken_out(packed.weight, precision);
  packed.unit = std::ldexp(1.0f, exponent);
  for (float& w : packed.weight) w = std::ldexp(w, -exponent);
  for (std::size_t row = 0; centred && row < rows; ++row)
    round_to_zero_sum(std::span(packed.weight).subspan(row * dim, dim), storage_type(precision));
  return packed;
}

}  // namespace warpweave::cuda
