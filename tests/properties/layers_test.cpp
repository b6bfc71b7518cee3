// Properties of the layers other than attention: each cell on its own, patches as pictures, batch and
// threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model_data.h"
#include "properties/problem.h"

namespace warpweave::properties {
namespace {

class LayersTest : public testing::TestWithParam<std::string> {
 protected:
  Engine engine(const Model& model, int threads = 2) const {
    return cpu_engine(model, GetParam(), Precision::fp32, threads);
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, LayersTest, testing::ValuesIn(plans()),
                         [](const auto& test) { return test.param; });

struct CellLayer {
  std::int64_t dim;
  std::string yaml;
};
const std::vector<CellLayer>& cell_layers() {
  static const std::vector<CellLayer> list = {
      {1, "feed_forward: {hidden: 3}"},
      {24, "feed_forward: {hidden: 50, activation: gelu_tanh, norm: rms}"},
      {33, "feed_forward: {hidden: 17, activation: relu, norm: none, bias: false}"},
      {40, "feed_forward: {hidden: 7, activation: silu, residual: false}"},
      {130, "feed_forward: {hidden: 260}"},
      {27, "norm: {kind: rms, eps: 0.1}"},
      {65, "norm: {}"},
      {19, "linear: {out: 41}"},
      {64, "linear: {out: 5, bias: false}"},
  };
  return list;
}

TEST_P(LayersTest, ASamplesBitsDoNotDependOnItsBatch) {
  for (const auto& [dim, yaml] : cell_layers()) {
    SCOPED_TRACE(yaml);
    const Engine e = engine(make_model(dim, {yaml}));
    for (const Shape& shape : {Shape{3, 13, 11}, Shape{3, 1, 1}, Shape{3, 8, 8}}) {
      const Tensor x = random_grid(shape, dim, 1);
      const Tensor y = run(e, x);
      for (std::int64_t batch = 1; batch <= 2; ++batch) {
        for (std::int64_t first = 0; first + batch <= 3; ++first) {
          EXPECT_TRUE(same_bits(run(e, samples(x, first, batch)), samples(y, first, batch)))
              << batch << " samples from " << first;
        }
      }
    }
  }
}

TEST_P(LayersTest, TheNumberOfThreadsDoesNotChangeABit) {
  for (const auto& [dim, yaml] : cell_layers()) {
    SCOPED_TRACE(yaml);
    const Model model = make_model(dim, {yaml});
    const Tensor x = random_grid({2, 13, 11}, dim, 1);
    const Tensor alone = run(engine(model, 1), x);
    for (const int threads : {2, 3, 5}) {
      EXPECT_TRUE(same_bits(run(engine(model, threads), x), alone)) << threads << " threads";
    }
  }
}

// A cell's result wherever it lies and whatever lies around it.
TEST_P(LayersTest, CellsAreTreatedAlike) {
  for (const auto& [dim, yaml] : cell_layers()) {
    SCOPED_TRACE(yaml);
    const Engine e = engine(make_model(dim, {yaml}));
    const Tensor x = random_grid({2, 13, 11}, dim, 1);
    const Tensor y = run(e, x);
    EXPECT_LE(difference(transposed(run(e, transposed(x))), y), 1e-6) << "another order of cells";
    for (const Shape& part : {Shape{2, 1, 1}, Shape{2, 3, 5}, Shape{2, 13, 2}}) {
      EXPECT_LE(difference(run(e, corner(x, part.rows, part.columns)), corner(y, part.rows, part.columns)),
                1e-6)
          << part.rows << " x " << part.columns;
    }
  }
}

TEST_P(LayersTest, NaNStaysInItsCell) {
  for (const auto& [dim, yaml] : cell_layers()) {
    SCOPED_TRACE(yaml);
    const Engine e = engine(make_model(dim, {yaml}));
    Tensor x = random_grid({1, 9, 8}, dim, 2);
    const Tensor y = run(e, x);
    x.values<float>()[static_cast<std::size_t>(37 * dim)] = std::nanf("");
    const Tensor z = run(e, x);
    for (std::int64_t cell = 0; cell < 72; ++cell) {
      EXPECT_EQ(same_cell(y, z, 0, cell / 8, cell % 8), cell != 37) << cell;
    }
  }
}

TEST_P(LayersTest, EmbeddingThenUnembeddingByTheIdentityGivesThePictureBack) {
  // Weights are random, so the identity comes from a pseudo-inverse: here the patch has as many values as the
  // grid has channels, and unembed . embed is one matrix per patch. Linearity and layout are what is tested:
  // the answer for a picture is the sum of the answers for its pixels.
  const Engine e = engine(make_model(2, {"patch_embed: {patch: 3, channels: 2, dim: 18, bias: false}",
                                         "patch_unembed: {patch: 3, channels: 2, bias: false}"}));
  const Shape shape{1, 6, 9};
  const Tensor x = random_grid(shape, 2, 3);
  const Tensor whole = run(e, x);
  Tensor sum(DType::f64, whole.shape());
  std::memset(sum.data(), 0, sum.bytes());
  for (std::size_t k = 0; k < x.values<float>().size(); ++k) {
    Tensor one = x;
    for (float& v : one.values<float>()) v = 0;
    one.values<float>()[k] = x.values<float>()[k];
    const Tensor y = run(e, one);
    const std::size_t row = k / 2 / 9, column = k / 2 % 9;
    for (std::size_t at = 0; at < y.values<float>().size(); ++at) {
      const float v = y.values<float>()[at];
      const bool same_patch = at / 2 / 9 / 3 == row / 3 && at / 2 % 9 / 3 == column / 3;
      if (!same_patch) {
        ASSERT_EQ(v, 0.0f) << "pixel " << k << " reaches " << at;
      }
      sum.values<double>()[at] += static_cast<double>(v);
    }
  }
  EXPECT_LE(difference(sum, whole), 1e-6);
}

TEST_P(LayersTest, PatchesFlattenByRowColumnChannel) {
  const Model model = make_model(3, {"patch_embed: {patch: 2, channels: 3, dim: 5}"});
  const float* weight = model.data()->weights[0].find("weight");  // [5, 12]
  const float* bias = model.data()->weights[0].find("bias");
  ASSERT_NE(weight, nullptr);
  ASSERT_NE(bias, nullptr);
  for (std::int64_t row = 0; row < 2; ++row)
    for (std::int64_t column = 0; column < 2; ++column)
      for (std::int64_t channel = 0; channel < 3; ++channel) {
        Tensor x = random_grid({1, 4, 6}, 3, 4);
        for (float& v : x.values<float>()) v = 0;
        // That pixel of the patch at grid cell (1, 2).
        x.values<float>()[static_cast<std::size_t>(((2 + row) * 6 + 4 + column) * 3 + channel)] = 1;
        const Tensor y = run(engine(model), x);
        for (std::int64_t cell = 0; cell < 6; ++cell)
          for (std::int64_t d = 0; d < 5; ++d) {
            const float w = cell == 5 ? weight[d * 12 + (row * 2 + column) * 3 + channel] : 0.0f;
            EXPECT_FLOAT_EQ(y.values<float>()[static_cast<std::size_t>(cell * 5 + d)], w + bias[d]);
          }
      }
}

TEST_P(LayersTest, PositionsAddTheTablesOfTheirRowAndColumn) {
  const Model model = make_model(4, {"position_embedding: {rows: 5, columns: 7}"});
  const float* rows = model.data()->weights[0].find("rows");
  const float* columns = model.data()->weights[0].find("columns");
  const Tensor x = random_grid({2, 3, 6}, 4, 5);
  const Tensor y = run(engine(model), x);
  for (std::int64_t cell = 0; cell < 36; ++cell) {
    const std::int64_t i = cell / 6 % 3, j = cell % 6;
    for (std::int64_t d = 0; d < 4; ++d) {
      const auto at = static_cast<std::size_t>(cell * 4 + d);
      EXPECT_NEAR(y.values<float>()[at], x.values<float>()[at] + rows[i * 4 + d] + columns[j * 4 + d], 1e-6);
    }
  }
}

// A variance by E[x^2] - E[x]^2 in float32 loses all at a mean of 1e4.
TEST_P(LayersTest, NormOfInputsFarFromZero) {
  const Engine e = engine(make_model(64, {"norm: {}"}));
  const Engine exact = cpu_engine(make_model(64, {"norm: {}"}), "reference", Precision::fp64);
  for (const float mean : {1e2f, 1e3f, 1e4f, -1e4f}) {
    Tensor x = random_grid({1, 3, 5}, 64, 6);
    for (float& v : x.values<float>()) v += mean;
    EXPECT_LE(difference(run(e, x), run(exact, x, nullptr, DType::f64)), 1e-5) << mean;
  }
}

}  // namespace
}  // namespace warpweave::properties
