// What pack_warp_layer() makes of a layer, read as kernels/split/warp_sequence.cuh reads it, is the layer.
#include "cuda/split/warp_pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/split/pack.h"
#include "numeric/half.h"
#include "split/layer.h"

namespace warpweave::cuda::split {
namespace {

using graph::AxialAttention;
using Rows = std::vector<std::vector<double>>;

constexpr std::int64_t kTokens = 7;

weights::LayerWeights weights_of(const AxialAttention& a, double size = 1) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  weights::LayerWeights w;
  const auto fill = [&](const char* name, std::vector<std::int64_t> shape, double center, double spread) {
    Tensor t(DType::f32, shape);
    for (float& v : t.values<float>()) v = static_cast<float>(center + spread * normal(random));
    w.set(name, std::move(t));
  };
  const double of_qkv = size / std::sqrt(static_cast<double>(a.dim));
  fill("norm.weight", {a.dim}, 1, 0.3);
  if (a.norm.kind == graph::NormKind::layer) fill("norm.bias", {a.dim}, 0, 0.1);
  fill("qkv.weight", {3 * a.inner(), a.dim}, 0, of_qkv);
  fill("qkv.bias", {3 * a.inner()}, 0, 0.3 * size);
  fill("out.weight", {a.dim, a.inner()}, 0, 1 / std::sqrt(static_cast<double>(a.inner())));
  fill("out.bias", {a.dim}, 0, 0.1);
  return w;
}

Rows tokens(std::int64_t dim) {
  std::mt19937_64 random(2);
  std::normal_distribution<double> normal;
  Rows list(kTokens, std::vector<double>(static_cast<std::size_t>(dim)));
  for (auto& row : list)
    for (double& v : row) v = 0.5 + normal(random);
  return list;
}

// Without gain and bias. `left` of the mean stays in it.
Rows normalised(const Rows& x, graph::NormKind kind, double left = 0) {
  Rows n = x;
  for (auto& row : n) {
    const double count = static_cast<double>(row.size());
    const double mean =
        kind == graph::NormKind::layer ? std::accumulate(row.begin(), row.end(), 0.0) / count : 0;
    double square = 0;
    for (double& v : row) v -= mean, square += v * v;
    for (double& v : row) v = (v + left) / std::sqrt(square / count);
  }
  return n;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// softmax(q k) v of rows [token][channel], as exponentials of `base`.
Rows attend(const Rows& q, const Rows& k, const Rows& v, double scale, double base) {
  Rows o(q.size(), std::vector<double>(v[0].size()));
  for (std::size_t i = 0; i < q.size(); ++i) {
    std::vector<double> s;
    for (const auto& row : k) s.push_back(scale * dot(q[i], row));
    const double most = *std::max_element(s.begin(), s.end());
    double sum = 0;
    for (std::size_t j = 0; j < s.size(); ++j) {
      const double weight = std::pow(base, s[j] - most);
      sum += weight;
      for (std::size_t c = 0; c < o[i].size(); ++c) o[i][c] += weight * v[j][c];
    }
    for (double& value : o[i]) value /= sum;
  }
  return o;
}

// y - x by the definition.
Rows exact(const AxialAttention& a, const weights::LayerWeights& w, const Rows& x) {
  Rows n = normalised(x, a.norm.kind), y(x.size(), std::vector<double>(static_cast<std::size_t>(a.dim)));
  const float* const offset = w.find("norm.bias");
  for (auto& row : n)
    for (std::size_t i = 0; i < row.size(); ++i)
      row[i] = row[i] * w.find("norm.weight")[i] + (offset ? offset[i] : 0);
  const auto inner = static_cast<std::size_t>(a.inner()), head = static_cast<std::size_t>(a.head_dim);
  Rows o(x.size(), std::vector<double>(inner));
  for (std::size_t h = 0; h < static_cast<std::size_t>(a.heads); ++h) {
    Rows part[3];
    for (std::size_t which = 0; which < 3; ++which) {
      for (const auto& row : n) {
        part[which].emplace_back();
        for (std::size_t c = 0; c < head; ++c) {
          const std::size_t r = which * inner + h * head + c;
          const float* const weight = w.find("qkv.weight") + r * row.size();
          part[which].back().push_back(std::inner_product(row.begin(), row.end(), weight, 0.0) +
                                       w.find("qkv.bias")[r]);
        }
      }
    }
    const Rows result = attend(part[0], part[1], part[2], a.scale, std::numbers::e);
    for (std::size_t t = 0; t < x.size(); ++t)
      std::copy(result[t].begin(), result[t].end(), o[t].begin() + static_cast<std::ptrdiff_t>(h * head));
  }
  for (std::size_t t = 0; t < x.size(); ++t) {
    for (std::size_t i = 0; i < y[t].size(); ++i) {
      const float* const weight = w.find("out.weight") + i * inner;
      y[t][i] = std::inner_product(o[t].begin(), o[t].end(), weight, 0.0) + w.find("out.bias")[i];
    }
  }
  return y;
}

// Reads the packed layer where the kernels look.
struct Reader {
  const WarpPacked& packed;
  std::int64_t dim, inner, parts;

  double element(std::int64_t matrix, std::int64_t rows, std::int64_t depth, std::int64_t row,
                 std::int64_t k) const {
    double sum = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t at = matrix + ((part * (depth / 16) + k / 16) * (rows / 8) + row / 8) * 256 +
                              k / 8 % 2 * 128 + row % 8 * 16 + k % 8 * 2;
      std::uint16_t bits;
      std::memcpy(&bits, packed.bytes.data() + at, 2);
      sum += f16_to_float(bits);
    }
    return sum;
  }
  std::int64_t out() const { return parts * 3 * inner * dim * 2; }
  std::int64_t floats() const { return out() + parts * inner * dim * 2; }
  std::int64_t factors() const { return floats() + 3 * inner * 8; }
  double qkv(std::int64_t row, std::int64_t k) const {
    const double unit = parts == 2 && row < 2 * inner ? 1.0 / 512 : 1.0;
    return unit * element(0, 3 * inner, dim, row, warp_place(k));
  }
  double out(std::int64_t row, std::int64_t k) const {
    return element(out(), dim, inner, warp_place(row), k);
  }
  float number(std::int64_t at) const {
    float value;
    std::memcpy(&value, packed.bytes.data() + at, 4);
    return value;
  }
  // What the sum of a row begins with: of two rows twice.
  float start(std::int64_t from, std::int64_t row) const {
    const std::int64_t at = from + row / 2 * 16 + row % 2 * 4;
    EXPECT_EQ(number(at), number(at + 8));
    return number(at);
  }
};

// y - x as the kernels compute it, but for their rounding.
Rows by_the_kernels(const AxialAttention& a, const WarpPacked& packed, int parts, const Rows& x,
                    bool masked) {
  const std::int64_t pitch = head_pitch(a.head_dim), inner = a.heads * pitch;
  const Reader reader{packed, a.dim, inner, parts};
  EXPECT_EQ(static_cast<std::int64_t>(packed.bytes.size()), reader.factors() + a.dim * 20);
  const Rows n = normalised(x, a.norm.kind, a.norm.kind == graph::NormKind::layer ? 1e-3 : 0);
  Rows y(x.size(), std::vector<double>(static_cast<std::size_t>(a.dim))), o(x.size());
  for (std::int64_t h = 0; h < a.heads; ++h) {
    Rows part[3];
    for (std::int64_t which = 0; which < 3; ++which) {
      for (const auto& row : n) {
        part[which].emplace_back();
        for (std::int64_t c = 0; c < pitch; ++c) {
          const std::int64_t r = which * inner + h * pitch + c;
          double sum = which == 0 || (which == 2 && masked) ? reader.start(reader.floats(), r) : 0;
          for (std::int64_t k = 0; k < a.dim; ++k) sum += row[static_cast<std::size_t>(k)] * reader.qkv(r, k);
          EXPECT_LE(std::fabs(sum), 65504);
          part[which].back().push_back(sum);
        }
      }
    }
    const Rows result = attend(part[0], part[1], part[2], packed.score_scale, 2);
    for (std::size_t t = 0; t < x.size(); ++t) o[t].insert(o[t].end(), result[t].begin(), result[t].end());
  }
  for (std::size_t t = 0; t < x.size(); ++t) {
    for (std::int64_t i = 0; i < a.dim; ++i) {
      double sum = reader.start(reader.factors() + a.dim * (masked ? 12 : 4), i);
      for (std::int64_t c = 0; c < inner; ++c) sum += o[t][static_cast<std::size_t>(c)] * reader.out(i, c);
      y[t][static_cast<std::size_t>(i)] = sum * reader.number(reader.factors() + i * 4);
    }
  }
  return y;
}

double error(const Rows& y, const Rows& exact) {
  double difference = 0, size = 0;
  for (std::size_t t = 0; t < y.size(); ++t) {
    for (std::size_t i = 0; i < y[t].size(); ++i) {
      difference += (y[t][i] - exact[t][i]) * (y[t][i] - exact[t][i]);
      size += exact[t][i] * exact[t][i];
    }
  }
  return std::sqrt(difference / size);
}

TEST(SplitWarpPack, IsTheLayer) {
  for (AxialAttention a : {layer(64, 4, 16), layer(48, 3, 16), layer(16, 1, 24), layer(32, 2, 8)}) {
    for (const auto kind : {graph::NormKind::layer, graph::NormKind::rms}) {
      a.norm.kind = kind;
      const auto w = weights_of(a);
      const Rows x = tokens(a.dim), expected = exact(a, w, x);
      for (const int parts : {1, 2}) {
        const WarpPacked packed = pack_warp_layer(a, w, parts);
        EXPECT_EQ(packed.score_scale, 1);
        for (const bool masked : {false, true})
          EXPECT_LE(error(by_the_kernels(a, packed, parts, x, masked), expected), parts == 2 ? 2e-7 : 4e-4)
              << a.dim << " " << a.heads << " parts " << parts << " masked " << masked;
      }
    }
  }
}

// Small and large weights, and scores that no fp16 number could hold.
TEST(SplitWarpPack, AnySizeOfWeights) {
  const AxialAttention a = layer(64, 4, 16);
  const Rows x = tokens(a.dim);
  for (const double size : {1e-12, 1e-4, 1e3, 1e6}) {
    const auto w = weights_of(a, size);
    const WarpPacked packed = pack_warp_layer(a, w, 2);
    EXPECT_EQ(packed.score_scale > 1, size >= 1e3) << size;
    EXPECT_LE(error(by_the_kernels(a, packed, 2, x, false), exact(a, w, x)), size == 1e6 ? 1e-2 : 2e-6)
        << size;
  }
}

TEST(SplitWarpPack, NegativeScale) {
  AxialAttention a = layer(32, 2, 16);
  a.scale = -0.6;
  const auto w = weights_of(a);
  const Rows x = tokens(a.dim);
  EXPECT_LE(error(by_the_kernels(a, pack_warp_layer(a, w, 2), 2, x, false), exact(a, w, x)), 2e-7);
}

TEST(SplitWarpPack, ScalesOfOnePartRoundLess) {
  const AxialAttention a = layer(64, 4, 16);
  const auto w = weights_of(a);
  const WarpPacked one = pack_warp_layer(a, w, 1), two = pack_warp_layer(a, w, 2);
  const Reader coarse{one, a.dim, 64, 1}, fine{two, a.dim, 64, 2};
  double error = 0;
  for (std::int64_t row = 128; row < 192; ++row) {  // v, whose rows differ by a factor
    double most = 0, least = 0, difference = 0;
    for (std::int64_t k = 0; k < 64; ++k)
      most += coarse.qkv(row, k) * fine.qkv(row, k), least += fine.qkv(row, k) * fine.qkv(row, k);
    for (std::int64_t k = 0; k < 64; ++k)
      difference += std::pow(coarse.qkv(row, k) * least / most - fine.qkv(row, k), 2);
    error += difference / least / 64;
  }
  EXPECT_LE(std::sqrt(error), 1.65e-4);  // 2.0e-4 at an arbitrary scale
}

TEST(SplitWarpPack, ZeroWeights) {
  const AxialAttention a = layer(16, 1, 16);
  weights::LayerWeights w;
  const std::vector<float> zeros(48 * 16);
  w.set("qkv.weight", Tensor::from({48, 16}, zeros));
  w.set("out.weight", Tensor::from({16, 16}, std::span(zeros).first(256)));
  for (const int parts : {1, 2}) {
    const WarpPacked packed = pack_warp_layer(a, w, parts);
    const Reader reader{packed, 16, 16, parts};
    EXPECT_EQ(packed.score_scale, 1);
    for (std::int64_t i = 0; i < 16; ++i) EXPECT_TRUE(std::isfinite(reader.number(reader.factors() + i * 4)));
  }
}

// As fragments have it: lane c of a quad holds columns 2c, 2c + 1 and 8 further on.
TEST(SplitWarpPack, ALaneHoldsFourNeighbours) {
  for (std::int64_t c = 0; c < 4; ++c) {
    for (std::int64_t i = 0; i < 4; ++i)
      EXPECT_EQ(warp_place(16 + 4 * c + i), 16 + i / 2 * 8 + 2 * c + i % 2);
  }
}

}  // namespace
}  // namespace warpweave::cuda::split
