// Operands in two parts of fp16: together they are the weight to float32's accuracy, and no operand can
// overflow.
#include "cuda/split/pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "numeric/half.h"
#include "split/layer.h"

namespace warpweave::cuda::split {
namespace {

using graph::AxialAttention;

// Normal numbers times `size`; every tenth row is 1000 times as large, every tenth element a millionth.
weights::LayerWeights weights_of(const AxialAttention& a, double size = 1) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  weights::LayerWeights w;
  const auto fill = [&](const char* name, std::vector<std::int64_t> shape, double center, double spread) {
    Tensor t(DType::f32, shape);
    const std::int64_t width = shape.back();
    std::int64_t i = 0;
    for (float& v : t.values<float>()) {
      v = static_cast<float>(center + spread * normal(random));
      if (shape.size() == 2) v *= (i / width % 10 == 3 ? 1e3f : 1.0f) * (i % 10 == 7 ? 1e-6f : 1.0f);
      ++i;
    }
    w.set(name, std::move(t));
  };
  fill("norm.weight", {a.dim}, 1, 0.3);
  fill("norm.bias", {a.dim}, 0, 0.1);
  fill("qkv.weight", {3 * a.inner(), a.dim}, 0, size);
  fill("qkv.bias", {3 * a.inner()}, 0, size);
  fill("out.weight", {a.dim, a.inner()}, 0, size);
  fill("out.bias", {a.dim}, 0, 0.1);
  return w;
}

// Of the row that makes column `row` of the result.
double part(const Operand& o, std::int64_t k_padded, std::int64_t row, int which, std::int64_t k) {
  return f16_to_float(
      o.rows[static_cast<std::size_t>((packed_row(row) * kWeightParts + which) * k_padded + k)]);
}
double whole(const Operand& o, std::int64_t k_padded, std::int64_t row, std::int64_t k) {
  return part(o, k_padded, row, 0, k) + part(o, k_padded, row, 1, k);
}

TEST(Split, PartsTogetherAreTheWeight) {
  for (const double size : {1.0, 1e-20, 1e15}) {
    const AxialAttention a = layer(20, 3, 24);
    const auto w = weights_of(a, size);
    const Packed packed = pack(a, w);
    const std::int64_t pitch = head_pitch(a.head_dim);
    ASSERT_EQ(pitch, 32);
    for (std::int64_t row = 0; row < 3 * a.inner(); ++row) {
      const std::int64_t to = row / a.head_dim * pitch + row % a.head_dim;
      double most = 0;
      for (std::int64_t k = 0; k < a.dim; ++k) most = std::max(most, std::fabs(whole(packed.qkv, 32, to, k)));
      EXPECT_LE(most, 32768) << row;
      EXPECT_GE(most, 16384) << row;  // all of fp16's range is used
      // The shift of this row, from its largest element.
      double largest = 0;
      for (std::int64_t k = 0; k < a.dim; ++k) {
        const double exact =
            static_cast<double>(w.find("qkv.weight")[row * a.dim + k]) * w.find("norm.weight")[k];
        largest = std::max(largest, std::fabs(exact));
      }
      const double shift = std::exp2(std::round(std::log2(most / largest)));
      for (std::int64_t k = 0; k < a.dim; ++k) {
        const double exact =
            static_cast<double>(w.find("qkv.weight")[row * a.dim + k]) * w.find("norm.weight")[k] * shift;
        EXPECT_NEAR(whole(packed.qkv, 32, to, k), exact, std::fabs(exact) * 0x1p-22 + 0x1p-25)
            << row << " " << k;
      }
    }
  }
}

// As fragments of tile.cuh have it: lane c of a quad holds columns 2c, 2c + 1 of four tiles of 8 rows.
TEST(Split, ALaneHoldsNeighbouringColumns) {
  for (std::int64_t base : {0, 32}) {
    for (std::int64_t c = 0; c < 4; ++c) {
      for (std::int64_t tile = 0; tile < 4; ++tile) {
        for (std::int64_t b = 0; b < 2; ++b)
          EXPECT_EQ(packed_row(base + 8 * c + 2 * tile + b), base + 8 * tile + 2 * c + b);
      }
    }
  }
}

TEST(Split, PaddingIsZero) {
  const AxialAttention a = layer(20, 2, 5);
  const Packed packed = pack(a, weights_of(a));
  const std::int64_t rows = static_cast<std::int64_t>(packed.qkv.factor.size());
  EXPECT_EQ(rows % kColumns, 0);
  EXPECT_EQ(packed.qkv.rows.size(), static_cast<std::size_t>(rows * kWeightParts * 32));
  for (std::int64_t row = 0; row < rows; ++row) {
    const bool present = row < 3 * 2 * 16 && row % 16 < 5;
    for (std::int64_t k = present ? a.dim : 0; k < 32; ++k)
      EXPECT_EQ(whole(packed.qkv, 32, row, k), 0) << row << " " << k;
    EXPECT_EQ(packed.qkv.bias[row] != 0, present) << row;
  }
}

// The worst normalised token for a row is along that row.
TEST(Split, NoOperandPassesFp16) {
  for (const double size : {1.0, 1e-9, 1e9}) {
    const AxialAttention a = layer(64, 4, 16);
    const Packed packed = pack(a, weights_of(a, size));
    const double token = std::ldexp(std::sqrt(64.0), token_shift(64));
    EXPECT_LE(token, 32768);
    double largest[3] = {0, 0, 0};
    for (std::int64_t row = 0; row < 3 * a.inner(); ++row) {
      double square = 0;
      for (std::int64_t k = 0; k < a.dim; ++k) square += std::pow(whole(packed.qkv, 64, row, k), 2);
      const double value =
          packed.qkv.factor[row] * token * std::sqrt(square) + std::fabs(packed.qkv.bias[row]);
      EXPECT_LE(value, 32768 * 1.0001) << row;
      double& most = largest[row / a.inner()];
      most = std::max(most, value);
    }
    for (const double most : largest) EXPECT_GT(most, 16384 * 0.999);  // and no range is given away
  }
}

// q k, softmax's argument, comes out as scale times the product of what the weights say.
TEST(Split, ScalesCancel) {
  AxialAttention a = layer(16, 1, 16);
  a.scale = -0.5;
  const auto w = weights_of(a);
  const Packed packed = pack(a, w);
  const auto value = [&](std::int64_t row) {  // as stored, for the normalised token (1, -1, 1, ..)
    double sum = 0;
    for (std::int64_t k = 0; k < a.dim; ++k)
      sum += whole(packed.qkv, 32, row, k) * std::ldexp(k % 2 ? -1.0 : 1.0, token_shift(a.dim));
    return sum * packed.qkv.factor[row] + packed.qkv.bias[row];
  };
  const auto exact = [&](std::int64_t row) {
    double sum = w.find("qkv.bias")[row];
    for (std::int64_t k = 0; k < a.dim; ++k)
      sum += static_cast<double>(w.find("qkv.weight")[row * a.dim + k]) *
             ((k % 2 ? -1.0 : 1.0) * w.find("norm.weight")[k] + w.find("norm.bias")[k]);
    return sum;
  };
  double stored = 0, expected = 0, size = 0;
  for (std::int64_t c = 0; c < 16; ++c) {
    stored += value(c) * value(16 + c) * packed.score_scale;
    expected += exact(c) * exact(16 + c) * a.scale;
    size += std::fabs(exact(c) * exact(16 + c) * a.scale);
  }
  EXPECT_NEAR(stored, expected, 1e-6 * size);
  // The output projection undoes the scale of v.
  const double factor = packed.out.factor[2];
  double v = 0, sum = 0;
  for (std::int64_t c = 0; c < 16; ++c) {
    sum += whole(packed.out, 32, 2, c) * value(32 + c);
    v += static_cast<double>(w.find("out.weight")[2 * 16 + c]) * exact(32 + c);
  }
  EXPECT_NEAR(sum * factor, v, 1e-6 * std::fabs(v));
}

TEST(Split, RotatedPairsAreNeighbours) {
  AxialAttention a = layer(16, 1, 16);
  a.rope = graph::Rope{.style = graph::Rope::Style::half, .dims = 8};
  AxialAttention plain = layer(16, 1, 16);
  const auto w = weights_of(a);
  const Packed turned = pack(a, w), straight = pack(plain, w);
  const int from[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (std::int64_t c = 0; c < 16; ++c) {
    for (std::int64_t k = 0; k < 16; ++k) {
      EXPECT_EQ(whole(turned.qkv, 32, c, k), whole(straight.qkv, 32, from[c], k));
      EXPECT_EQ(whole(turned.qkv, 32, 16 + c, k), whole(straight.qkv, 32, 16 + from[c], k));
      EXPECT_EQ(whole(turned.qkv, 32, 32 + c, k), whole(straight.qkv, 32, 32 + c, k));  // v is not turned
    }
  }
}

TEST(Split, ZeroWeights) {
  const AxialAttention a = layer(8, 1, 8);
  weights::LayerWeights w;
  const std::vector<float> zeros(24 * 8);
  w.set("qkv.weight", Tensor::from({24, 8}, zeros));
  w.set("out.weight", Tensor::from({8, 8}, std::span(zeros).first(64)));
  const Packed packed = pack(a, w);
  for (const float f : packed.qkv.factor) EXPECT_TRUE(std::isfinite(f));
  EXPECT_TRUE(std::isfinite(packed.score_scale));
}

}  // namespace
}  // namespace warpweave::cuda::split
