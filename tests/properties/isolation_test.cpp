// NaN and infinity stay where the contract leaves them; queries without a key give x + bias.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "model_data.h"
#include "properties/problem.h"

namespace warpweave::properties {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void fill_cell(Tensor& x, std::int64_t b, std::int64_t i, std::int64_t j, float value) {
  const GridShape s = x.grid();
  const auto first = static_cast<std::size_t>(((b * s.rows + i) * s.columns + j) * s.channels);
  for (std::size_t d = 0; d < static_cast<std::size_t>(s.channels); ++d) x.values<float>()[first + d] = value;
}

bool valid(const Tensor& mask, std::int64_t b, std::int64_t i, std::int64_t j) {
  return mask.values<std::uint8_t>()[static_cast<std::size_t>((b * mask.shape()[1] + i) * mask.shape()[2] +
                                                              j)] != 0;
}

template <class Body>
void for_cells(const GridShape& s, const Body& body) {
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t i = 0; i < s.rows; ++i)
      for (std::int64_t j = 0; j < s.columns; ++j) body(b, i, j);
}

class Isolation : public testing::TestWithParam<std::tuple<std::string, Precision>> {
 protected:
  Engine engine(const Model& model) const {
    return cpu_engine(model, std::get<0>(GetParam()), std::get<1>(GetParam()));
  }
};

INSTANTIATE_TEST_SUITE_P(Cpu, Isolation,
                         testing::Combine(testing::ValuesIn(plans()),
                                          testing::Values(Precision::fp32, Precision::bf16, Precision::fp16)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" +
                                  std::string(to_string(std::get<1>(test.param)));
                         });

TEST_P(Isolation, WhatIsInMaskedCellsReachesNoOther) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Problem p = random_problem(seed);
    SCOPED_TRACE(testing::Message() << p);
    const Engine e = engine(make_model(p.attention.dim, {p.attention.yaml()}, seed));
    const Tensor clean = random_grid(p.shape, p.attention.dim, seed);
    const Tensor mask = random_mask(p.shape, seed, 70);
    const Tensor expected = run(e, clean, &mask);
    for (const float poison : {kNaN, kInfinity, -kInfinity, 3e38f}) {
      Tensor x = clean;
      for_cells(x.grid(), [&](auto b, auto i, auto j) {
        if (!valid(mask, b, i, j)) fill_cell(x, b, i, j, poison);
      });
      const Tensor y = run(e, x, &mask);
      for_cells(x.grid(), [&](auto b, auto i, auto j) {
        if (!valid(mask, b, i, j)) return;
        ASSERT_TRUE(same_cell(y, expected, b, i, j)) << poison << " at cell " << b << ", " << i << ", " << j;
      });
      if (HasFailure()) return;
    }
  }
}

TEST_P(Isolation, MaskedCellsOfAWholeModelReachNoOther) {
  const Engine e =
      engine(make_model(16, {"axial_attention: {axis: row, heads: 2}",
                             "axial_attention: {axis: column, heads: 2, rope: {style: half}}",
                             "feed_forward: {hidden: 24}", "axial_attention: {axis: row, heads: 2}"}));
  const Shape shape{2, 9, 11};
  Tensor x = random_grid(shape, 16, 3);
  const Tensor mask = random_mask(shape, 3);
  const Tensor expected = run(e, x, &mask);
  for_cells(x.grid(), [&](auto b, auto i, auto j) {
    if (!valid(mask, b, i, j)) fill_cell(x, b, i, j, kNaN);
  });
  const Tensor y = run(e, x, &mask);
  for_cells(x.grid(), [&](auto b, auto i, auto j) {
    if (valid(mask, b, i, j)) {
      EXPECT_TRUE(same_cell(y, expected, b, i, j));
    }
  });
}

TEST_P(Isolation, NaNInAValidCellStaysInItsSequence) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Problem p = random_problem(seed);
    SCOPED_TRACE(testing::Message() << p);
    const Engine e = engine(make_model(p.attention.dim, {p.attention.yaml()}, seed));
    Tensor x = random_grid(p.shape, p.attention.dim, seed);
    const Tensor expected = run(e, x);
    Dice dice(seed);
    const std::int64_t at_b = dice.below(p.shape.batch), at_i = dice.below(p.shape.rows),
                       at_j = dice.below(p.shape.columns);
    fill_cell(x, at_b, at_i, at_j, seed % 2 ? kNaN : kInfinity);
    const Tensor y = run(e, x);
    for_cells(x.grid(), [&](auto b, auto i, auto j) {
      const bool same_sequence = b == at_b && (p.attention.axis == "row" ? i == at_i : j == at_j);
      if (!same_sequence) {
        ASSERT_TRUE(same_cell(y, expected, b, i, j)) << b << ", " << i << ", " << j;
      }
    });
    if (HasFailure()) return;
    const auto first =
        static_cast<std::size_t>(((at_b * p.shape.rows + at_i) * p.shape.columns + at_j) * p.attention.dim);
    if (seed % 2) {
      EXPECT_TRUE(std::isnan(y.values<float>()[first]));
    }
  }
}

class NoKey : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Cpu, NoKey, testing::ValuesIn(plans()), [](const auto& test) { return test.param; });

// x * residual + bias, bit for bit: nothing of the sequence, no NaN from 0 / 0.
TEST_P(NoKey, QueriesWithoutAKeyGiveXPlusBias) {
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    const Problem p = random_problem(seed);
    SCOPED_TRACE(testing::Message() << p);
    const Model model = make_model(p.attention.dim, {p.attention.yaml()}, seed);
    const Tensor x = random_grid(p.shape, p.attention.dim, seed);
    Tensor mask = random_mask(p.shape, seed, 25);
    const Tensor y = run(cpu_engine(model, GetParam()), x, &mask);
    const float* bias = model.data()->weights[0].find("out.bias");
    for_cells(x.grid(), [&](auto b, auto i, auto j) {
      const bool row = p.attention.axis == "row";
      const std::int64_t position = row ? j : i, length = row ? p.shape.columns : p.shape.rows;
      for (std::int64_t key = 0; key < (p.attention.causal ? position + 1 : length); ++key) {
        if (row ? valid(mask, b, i, key) : valid(mask, b, key, j)) return;
      }
      const auto cell = static_cast<std::size_t>((b * p.shape.rows + i) * p.shape.columns + j);
      for (std::int64_t d = 0; d < p.attention.dim; ++d) {
        const auto at = cell * static_cast<std::size_t>(p.attention.dim) + static_cast<std::size_t>(d);
        const float expected =
            (p.attention.residual ? x.values<float>()[at] : 0.0f) + (bias ? bias[d] : 0.0f);
        ASSERT_EQ(y.values<float>()[at], expected)
            << "cell " << b << ", " << i << ", " << j << " channel " << d;
      }
    });
    if (HasFailure()) return;
  }
}

TEST_P(NoKey, AnEmptyMaskGivesXPlusBiasEverywhere) {
  const Model model = make_model(24, {"axial_attention: {axis: column, heads: 3}"});
  const Shape shape{2, 7, 5};
  const Tensor x = random_grid(shape, 24, 1);
  const Tensor mask = random_mask(shape, 1, 0);
  const Tensor y = run(cpu_engine(model, GetParam()), x, &mask);
  const float* bias = model.data()->weights[0].find("out.bias");
  ASSERT_NE(bias, nullptr);
  for (std::size_t k = 0; k < x.values<float>().size(); ++k) {
    ASSERT_EQ(y.values<float>()[k], x.values<float>()[k] + bias[k % 24]);
  }
}

}  // namespace
}  // namespace warpweave::properties
