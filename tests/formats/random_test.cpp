#include "weights/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "weights/load.h"

namespace warpweave::testing {
namespace {

using weights::fill_normal;
using weights::NormalStream;

// The values of tests/reference/axial.py, normals() and random_tensor().
TEST(Random, EqualsThePythonGeneratorBitForBit) {
  const NormalStream a(0, "0.qkv.weight"), b(42, "x"), c(~std::uint64_t{0}, "");
  const double expected[3][4] = {
      {-0x1.6427278dfec94p-1, 0x1.77897ae6230c6p+0, 0x1.a6f03a604d148p+0, -0x1.03990eb419a3ap+0},
      {0x1.aa15a1b44d9abp-5, 0x1.003fb139a577ep+0, 0x1.6be128128667ap+0, 0x1.585a75391130ap-2},
      {0x1.c099e59115590p-3, -0x1.a5978cc7a34a5p+0, 0x1.2611db367cf98p-2, -0x1.36cd37cb64c95p+0}};
  for (std::size_t k = 0; k < 4; ++k) {
    EXPECT_EQ(a[k], expected[0][k]);
    EXPECT_EQ(b[k], expected[1][k]);
    EXPECT_EQ(c[k], expected[2][k]);
  }
}

TEST(Random, HasMeanZeroAndVarianceOneAndDependsOnSeedAndKey) {
  std::vector<float> x(1000000), y(x.size());
  fill_normal(x, 7, "input");
  double sum = 0, squares = 0;
  for (const float v : x) sum += v, squares += double{v} * v;
  EXPECT_NEAR(sum / 1e6, 0, 4e-3);  // four standard errors
  EXPECT_NEAR(squares / 1e6, 1, 5e-3);
  for (const auto& [seed, key] : {std::pair{8, "input"}, {7, "Input"}}) {
    fill_normal(y, static_cast<std::uint64_t>(seed), key);
    double product = 0;
    for (std::size_t i = 0; i < x.size(); ++i) product += double{x[i]} * y[i];
    EXPECT_NEAR(product / 1e6, 0, 4e-3);
  }
}

TEST(Random, WeightsFollowTheirRole) {
  const auto graph = graph::parse_graph(
      "name: m\ninput: {dim: 3}\nlayers:\n  - linear: {out: 2}\n  - norm: {}\n"
      "  - position_embedding: {rows: 2, columns: 3}\n",
      "m.yaml");
  const auto all = weights::random_weights(graph, 3);
  ASSERT_EQ(all.size(), 3u);
  const auto value = [&](std::size_t node, const char* name, std::size_t i) {
    return all[node].find(name)[i];
  };
  EXPECT_EQ(value(0, "weight", 0), -0x1.8a8p-2f);  // normal / sqrt(3)
  EXPECT_EQ(value(0, "weight", 5), 0x1.040ap+0f);
  EXPECT_EQ(value(0, "bias", 0), 0x1.77e06ep-5f);  // 0.1 normal
  EXPECT_EQ(value(0, "bias", 1), 0x1.52befp-3f);
  EXPECT_EQ(value(1, "norm.weight", 0), 0x1.a43914p-1f);  // 1 + 0.1 normal
  EXPECT_EQ(value(1, "norm.weight", 1), 0x1.c3ea5ap-1f);
  EXPECT_EQ(value(2, "rows", 0), 0x1.bf31a2p-4f);  // 0.1 normal
  EXPECT_EQ(value(2, "rows", 1), 0x1.d5bb7p-7f);
  EXPECT_EQ(all[0].all().at("weight").shape(), (std::vector<std::int64_t>{2, 3}));
  const auto again = weights::random_weights(graph, 3), other = weights::random_weights(graph, 4);
  EXPECT_EQ(again[2].find("columns")[5], value(2, "columns", 5));
  EXPECT_NE(other[2].find("columns")[5], value(2, "columns", 5));
}

}  // namespace
}  // namespace warpweave::testing
