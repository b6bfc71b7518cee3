// Layers that `long` runs in one kernel, through the public interface: sequences of up to 512, as many of
// them in a sample as fill most of the device. Against `reference` in float64 on the CPU.
#include "whole_layer_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "properties/problem.h"
#include "warpweave/error.h"

namespace warpweave::long_test {
namespace {

using properties::Attention;
using properties::Dice;
using properties::rounded;
using properties::update_error;

struct WholeCase {
  Attention attention;
  Precision precision = Precision::bf16;
  Shape shape;
  bool masked = false, steep = false;
};

// Lengths around whole tiles of 64 and of the groups' 128; a device of 132 multiprocessors is to be filled.
std::vector<WholeCase> whole_cases() {
  std::vector<WholeCase> list;
  Dice dice(5);
  for (const std::int64_t length : {193, 256, 257, 300, 384, 385, 449, 512}) {
    for (const Precision precision : {Precision::bf16, Precision::fp16}) {
      WholeCase c;
      Attention& a = c.attention;
      a.dim = 128, a.heads = 4, a.head_dim = dice.pick<std::int64_t>({32, 32, 24, 20});
      properties::draw_options(a, dice, {"layer", "rms", "none"});
      a.causal = false;
      const auto turn = static_cast<std::int64_t>(list.size());
      if (turn % 3 == 0)
        a.rope = turn % 2 == 0 ? "{style: half, dims: 16}" : "{style: interleaved, dims: 20}";
      a.axis = turn / 2 % 2 == 0 ? "row" : "column";
      c.precision = precision, c.masked = turn == 6, c.steep = turn % 5 == 4;
      if (c.steep) a.scale = precision == Precision::bf16 ? "3.0" : "0.69";
      const std::int64_t sequences = turn % 4 == 3 ? 252 : 120 + turn % 13;  // one turn or two
      c.shape = a.axis == "row" ? Shape{1, sequences, length} : Shape{1, length, sequences};
      list.push_back(c);
    }
  }
  return list;
}

Model model(const WholeCase& c) { return properties::make_model(c.attention.dim, {c.attention.yaml()}, 3); }

EngineOptions options(Precision precision, std::int64_t limit = 0) {
  EngineOptions o;
  o.device = Device::cuda(0);
  o.precision = precision, o.plan = "long", o.strict = true, o.workspace_limit = limit;
  return o;
}

const Shape kBoth{1, 384, 264};  // rows and columns

// Every sequence is one of the first few, in turn.
constexpr std::int64_t kDistinct = 20;

std::size_t place(const WholeCase& c, std::int64_t sequence, std::int64_t element) {
  const bool row = c.attention.axis == "row";
  return static_cast<std::size_t>(
      ((row ? sequence : element) * c.shape.columns + (row ? element : sequence)) * c.attention.dim);
}

// Calls body(cell, cell of the distinct one).
template <class Body>
void for_repeated(const WholeCase& c, const Body& body) {
  const bool row = c.attention.axis == "row";
  const std::int64_t sequences = row ? c.shape.rows : c.shape.columns,
                     length = row ? c.shape.columns : c.shape.rows;
  for (std::int64_t i = kDistinct; i < sequences; ++i)
    for (std::int64_t l = 0; l < length; ++l) body(place(c, i, l), place(c, i % kDistinct, l));
}

Tensor distinct(const WholeCase& c, const Tensor& t) {
  const bool row = c.attention.axis == "row";
  return properties::corner(t, row ? kDistinct : c.shape.rows, row ? c.shape.columns : kDistinct);
}

TEST(WholeLayer, AgreesWithFloat64) {
  const int threads = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
  double worst[2][2] = {};
  for (const WholeCase& c : whole_cases()) {
    const Model m = model(c);
    const std::int64_t dim = c.attention.dim;
    Tensor x = rounded(properties::random_grid(c.shape, dim, 7), c.precision);
    float* values = x.values<float>().data();
    for_repeated(c,
                 [&](std::size_t cell, std::size_t from) { std::copy_n(values + from, dim, values + cell); });
    const Tensor mask = properties::random_mask(c.shape, 7);
    const Tensor* used = c.masked ? &mask : nullptr;
    const Tensor y = Engine(m, options(c.precision)).run(x, used);
    const Tensor few = distinct(c, x), few_masked = distinct(c, mask);
    const Tensor exact = properties::cpu_engine(m, "reference", Precision::fp64, threads)
                             .run(few, used ? &few_masked : nullptr);
    const double error = update_error(distinct(c, y), exact, few, c.attention.residual);
    double& most = worst[c.precision == Precision::fp16][c.steep];
    most = std::max(most, error);
    const double allowed = (c.precision == Precision::bf16 ? 1.5e-2 : 2e-3) * (c.steep ? 12 : 1);
    const std::string what = c.attention.yaml() + " " + std::string(to_string(c.precision)) + " on [" +
                             std::to_string(c.shape.rows) + ", " + std::to_string(c.shape.columns) + "]";
    EXPECT_LE(error, allowed) << what;
    if (c.masked) continue;
    const float* got = y.values<float>().data();
    std::int64_t different = 0;
    for_repeated(c, [&](std::size_t cell, std::size_t from) {
      different += std::memcmp(got + cell, got + from, static_cast<std::size_t>(dim) * sizeof(float)) != 0;
    });
    EXPECT_EQ(different, 0) << what;
  }
  std::printf("whole layers: worst error bf16 %.2e, fp16 %.2e; steep scores %.2e, %.2e\n", worst[0][0],
              worst[1][0], worst[0][1], worst[1][1]);
}

// In any batch, with any workspace, and again.
TEST(WholeLayer, ASampleKeepsItsBits) {
  const Model m = properties::make_block(128, 4);
  Shape two = kBoth;
  two.batch = 2;
  const Tensor x = properties::random_grid(two, 128, 3);
  const std::int64_t grid = 2 * two.rows * two.columns * 128 * 2 + 4096;  // what waits between the layers
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const Tensor all = Engine(m, options(precision)).run(x);
    EXPECT_TRUE(properties::same_bits(all, Engine(m, options(precision)).run(x)));
    for (std::int64_t i = 0; i < 2; ++i)
      EXPECT_TRUE(properties::same_bits(Engine(m, options(precision)).run(properties::samples(x, i, 1)),
                                        properties::samples(all, i, 1)))
          << i;
    for (const std::int64_t sequences : {1, 9})
      EXPECT_TRUE(properties::same_bits(
          Engine(m, options(precision, grid + sequences * two.rows * 128 * 8)).run(x), all))
          << sequences;
  }
}

// A sequence that is not a number leaves the others as they are.
TEST(WholeLayer, SequencesKnowNothingOfEachOther) {
  const Shape s{1, 125, 333};
  const Model m = properties::make_model(128, {"axial_attention: {axis: row, heads: 4}"});
  const Engine gpu(m, options(Precision::bf16));
  Tensor x = properties::random_grid(s, 128, 3);
  const Tensor clean = gpu.run(x);
  const std::int64_t per_row = s.columns * 128, bad = 70;
  float* values = x.values<float>().data();
  std::fill(values + bad * per_row, values + (bad + 1) * per_row, std::numeric_limits<float>::quiet_NaN());
  const Tensor y = gpu.run(x);
  std::int64_t different = 0, numbers = 0;
  for (std::int64_t i = 0; i < s.rows * per_row; ++i) {
    const float got = y.values<float>()[static_cast<std::size_t>(i)];
    if (i / per_row == bad)
      numbers += !std::isnan(got);
    else
      different += got != clean.values<float>()[static_cast<std::size_t>(i)];
  }
  EXPECT_EQ(different, 0);
  EXPECT_EQ(numbers, 0);
}

}  // namespace

void for_whole_layers(const std::function<void(const Model&, const Shape&, Precision)>& body) {
  for (const WholeCase& c : whole_cases()) body(model(c), c.shape, c.precision);
  for (const Precision precision : {Precision::bf16, Precision::fp16})
    body(properties::make_block(128, 4), kBoth, precision);
  body(properties::make_model(128, {"axial_attention: {axis: row, heads: 4}"}), {1, 125, 333},
       Precision::bf16);
}

}  // namespace warpweave::long_test
