// Layers of cpu_fused against plain loops in float64, and what the contract promises of them.
#include <gtest/gtest.h>

#include "cpu_fused/harness.h"

#include <algorithm>
#include "cpu_fused/loops.h"
#include "graph/layers/linear.h"
#include "graph/layers/norm.h"
#include "graph/layers/patch.h"
#include "graph/layers/position_embedding.h"
#include "warpweave/error.h"

namespace warpweave::test {
namespace {

using graph::AxialAttention, graph::Axis, graph::CellShape, graph::FeedForward, graph::NormKind, graph::Rope;

class StepsTest : public testing::TestWithParam<const cpu::fused::Kernels*> {
 protected:
  std::string isa() const { return GetParam()->name; }

  // The worse of the errors into a second grid and, where the layer can, in place.
  double error(const graph::Layer& layer, bool residual, std::int64_t batch, const CellShape& input,
               const std::vector<std::uint8_t>& mask = {}, Precision precision = Precision::fp32) const {
    const auto weights = random_layer_weights(layer);
    const auto x = random_grid(batch * input.cells() * input.channels);
    const FusedLayer fused(layer, weights, isa(), precision);
    const auto exact = layer_in_loops(layer, weights, x, batch, input, mask);
    double worst = 0;
    for (const bool in_place : {false, true}) {
      if (in_place && !fused.step->in_place()) continue;
      const auto y = fused.run(x, batch, input, mask, 2, in_place);
      worst = std::max(worst, update_error(y, exact, residual ? x : std::vector<float>{}));
    }
    return worst;
  }
};

std::vector<std::uint8_t> random_mask(std::int64_t cells) {
  std::mt19937 random(5);
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(cells));
  for (auto& m : mask) m = random() % 3 ? 7 : 0;
  return mask;
}

struct AttentionCase {
  const char* name;
  std::int64_t dim, heads, head_dim, batch, rows, columns;
  bool mask = false;
  void (*change)(AxialAttention&) = [](AxialAttention&) {};
};

const AttentionCase kAttention[] = {
    {"seed", 64, 4, 16, 2, 5, 32},
    {"one_token", 64, 4, 16, 2, 1, 1},
    {"short_sequences", 48, 3, 16, 2, 7, 5},
    {"uneven", 40, 3, 24, 1, 3, 61},
    {"tiny", 3, 1, 3, 2, 4, 9},
    {"narrow_head", 8, 8, 1, 1, 2, 35},
    {"wide_head", 96, 1, 96, 1, 2, 70},
    {"inner_wider", 32, 4, 40, 1, 2, 33},
    {"inner_narrower", 128, 2, 16, 1, 2, 40},
    {"long", 32, 2, 16, 1, 1, 600},
    {"many_blocks", 32, 2, 16, 1, 5, 200},
    {"masked", 64, 4, 16, 2, 5, 32, true},
    {"masked_long", 32, 2, 16, 1, 3, 301, true},
    {"causal", 32, 2, 16, 2, 3, 100, false, [](AxialAttention& l) { l.causal = true; }},
    {"causal_long", 32, 2, 16, 1, 1, 400, false, [](AxialAttention& l) { l.causal = true; }},
    {"causal_masked", 32, 2, 16, 2, 3, 200, true, [](AxialAttention& l) { l.causal = true; }},
    {"causal_short", 32, 2, 16, 2, 9, 3, true, [](AxialAttention& l) { l.causal = true; }},
    {"rms", 64, 4, 16, 2, 3, 32, false, [](AxialAttention& l) { l.norm.kind = NormKind::rms; }},
    {"no_norm", 64, 4, 16, 2, 3, 32, false, [](AxialAttention& l) { l.norm.kind = NormKind::none; }},
    {"all_biases", 64, 4, 16, 2, 3, 32, false, [](AxialAttention& l) { l.qkv_bias = true; }},
    {"no_bias_no_residual", 64, 4, 16, 2, 3, 32, false,
     [](AxialAttention& l) { l.out_bias = false, l.residual = false; }},
    {"scale", 64, 4, 16, 2, 3, 32, false, [](AxialAttention& l) { l.scale = -0.7; }},
    {"rope_half", 64, 2, 32, 1, 3, 150, false,
     [](AxialAttention& l) {
       l.rope = Rope{10000, Rope::Style::half, 32};
     }},
    {"rope_interleaved", 64, 2, 32, 1, 3, 150, true,
     [](AxialAttention& l) {
       l.rope = Rope{100, Rope::Style::interleaved, 32}, l.qkv_bias = true;
     }},
    {"rope_partial", 60, 3, 20, 1, 3, 70, false,
     [](AxialAttention& l) {
       l.rope = Rope{10000, Rope::Style::interleaved, 6};
     }},
    {"large_dim", 1024, 16, 64, 1, 1, 66},
};

TEST_P(StepsTest, AttentionIsAccurate) {
  for (const auto& c : kAttention)
    for (const Axis axis : {Axis::row, Axis::column}) {
      AxialAttention layer = attention_layer(c.dim, c.heads, axis, c.head_dim);
      c.change(layer);
      const CellShape input =
          axis == Axis::row ? CellShape{c.rows, c.columns, c.dim} : CellShape{c.columns, c.rows, c.dim};
      const auto mask = c.mask ? random_mask(c.batch * input.cells()) : std::vector<std::uint8_t>{};
      EXPECT_LE(error(layer, layer.residual, c.batch, input, mask), 1e-6)
          << c.name << (axis == Axis::row ? " row" : " column");
    }
}

TEST_P(StepsTest, OtherLayersAreAccurate) {
  const CellShape grid{5, 17, 40};
  for (const auto a : {graph::Activation::gelu, graph::Activation::gelu_tanh, graph::Activation::relu,
                       graph::Activation::silu}) {
    FeedForward layer;
    layer.dim = 40, layer.hidden = 150, layer.activation = a;
    EXPECT_LE(error(layer, true, 2, grid), 1e-6);
    layer.norm.kind = NormKind::rms, layer.bias = layer.residual = false;
    EXPECT_LE(error(layer, false, 2, grid), 1e-6);
  }
  graph::NormLayer norm;
  norm.dim = 40;
  EXPECT_LE(error(norm, false, 2, grid), 1e-6);
  norm.norm.kind = NormKind::rms;
  EXPECT_LE(error(norm, false, 2, grid), 1e-6);
  graph::Linear linear;
  linear.dim = 40, linear.out = 13;
  EXPECT_LE(error(linear, false, 2, grid), 1e-6);
  graph::PositionEmbedding position;
  position.dim = 40, position.rows = 6, position.columns = 20;
  EXPECT_LE(error(position, false, 2, grid), 1e-6);
  graph::PatchEmbed embed;
  embed.patch = 4, embed.channels = 3, embed.dim = 40;
  EXPECT_LE(error(embed, false, 2, {20, 28, 3}), 1e-6);
  graph::PatchUnembed unembed;
  unembed.patch = 4, unembed.channels = 3, unembed.dim = 40;
  EXPECT_LE(error(unembed, false, 2, grid), 1e-6);
}

TEST_P(StepsTest, BitsDependOnNothingElse) {
  struct Shape {
    std::int64_t batch;
    CellShape input;
  };
  for (const Axis axis : {Axis::row, Axis::column})
    for (const bool causal : {false, true})
      for (const Shape& s : {Shape{3, {5, 200, 32}}, Shape{5, {9, 7, 32}}, Shape{2, {1, 150, 32}}}) {
        AxialAttention layer = attention_layer(32, 2, axis);
        layer.causal = causal, layer.rope = Rope{10000, Rope::Style::half, 16};
        const auto mask = random_mask(s.batch * s.input.cells());
        const std::int64_t sample = s.input.cells() * 32;
        const auto x = random_grid(s.batch * sample);
        const FusedLayer fused(layer, random_layer_weights(layer), isa());
        const auto y = fused.run(x, s.batch, s.input, mask, 1);
        for (const int threads : {2, 3, 7})
          EXPECT_EQ(y, fused.run(x, s.batch, s.input, mask, threads)) << threads;
        for (std::int64_t b = 0; b < s.batch; ++b) {
          const std::vector<float> one(x.begin() + b * sample, x.begin() + (b + 1) * sample);
          const std::vector<std::uint8_t> m(mask.begin() + b * s.input.cells(),
                                            mask.begin() + (b + 1) * s.input.cells());
          const auto alone = fused.run(one, 1, s.input, m, 2);
          EXPECT_TRUE(std::equal(alone.begin(), alone.end(), y.begin() + b * sample));
        }
      }
}

// In place, where a thread that reads what another has written already would show: with fewer sequences than
// threads, as many, and more; of less than a block, of one, and of several with a short one at the end;
// halves of a block may be empty.
TEST_P(StepsTest, ThreadsShareTheLastSequences) {
  struct Shape {
    std::int64_t sequences, length;
  };
  for (const Axis axis : {Axis::row, Axis::column})
    for (const Shape& s :
         {Shape{50, 64}, Shape{16, 65}, Shape{1, 700}, Shape{100, 3}, Shape{3, 1}, Shape{20, 129}}) {
      const AxialAttention layer = attention_layer(32, 2, axis);
      const CellShape input =
          axis == Axis::row ? CellShape{s.sequences, s.length, 32} : CellShape{s.length, s.sequences, 32};
      const auto x = random_grid(input.cells() * 32);
      const FusedLayer fused(layer, random_layer_weights(layer), isa());
      for (const auto& mask : {std::vector<std::uint8_t>{}, random_mask(input.cells())}) {
        const auto y = fused.run(x, 1, input, mask, 1);
        for (const int threads : {2, 5, 16})
          for (int again = 0; again < 3; ++again)
            EXPECT_EQ(y, fused.run(x, 1, input, mask, threads, true))
                << s.sequences << " of " << s.length << ", " << threads << " threads";
      }
    }
}

TEST_P(StepsTest, AFullMaskIsNoMask) {
  const AxialAttention layer = attention_layer(64, 4);
  const CellShape input{3, 140, 64};
  const auto x = random_grid(input.cells() * 64);
  const FusedLayer fused(layer, random_layer_weights(layer), isa());
  EXPECT_EQ(fused.run(x, 1, input),
            fused.run(x, 1, input, std::vector<std::uint8_t>(std::size_t(input.cells()), 1)));
}

TEST_P(StepsTest, QueriesWithoutKeysGiveTheBias) {
  for (const bool causal : {false, true}) {
    AxialAttention layer = attention_layer(32, 2);
    layer.causal = causal;
    const CellShape input{2, 150, 32};
    const auto x = random_grid(input.cells() * 32);
    const auto weights = random_layer_weights(layer);
    std::vector<std::uint8_t> mask(std::size_t(input.cells()), 0);  // row 0: no key at all
    for (std::int64_t t = 0; t < 150; ++t) mask[std::size_t(150 + t)] = t >= 70;
    const auto y = FusedLayer(layer, weights, isa()).run(x, 1, input, mask);
    const float* bias = weights.find("out.bias");
    for (std::int64_t t = 0; t < 150 + (causal ? 70 : 0); ++t)
      for (std::int64_t c = 0; c < 32; ++c)
        EXPECT_EQ(y[std::size_t(t * 32 + c)], x[std::size_t(t * 32 + c)] + bias[c]) << t;
  }
}

TEST_P(StepsTest, NanInAMaskedCellStaysThere) {
  for (const Axis axis : {Axis::row, Axis::column})
    for (const std::int64_t length : {9, 40, 150}) {
      const AxialAttention layer = attention_layer(32, 2, axis);
      const CellShape input = axis == Axis::row ? CellShape{4, length, 32} : CellShape{length, 4, 32};
      auto x = random_grid(2 * input.cells() * 32);
      std::vector<std::uint8_t> mask(std::size_t(2 * input.cells()), 1);
      for (const std::int64_t cell : {std::int64_t(0), input.cells() - 1, input.cells() + 5})
        mask[std::size_t(cell)] = 0;
      const FusedLayer fused(layer, random_layer_weights(layer), isa());
      const auto clean = fused.run(x, 2, input, mask);
      for (std::size_t cell = 0; cell < mask.size(); ++cell)
        for (std::size_t c = 0; c < 32 && !mask[cell]; ++c) x[cell * 32 + c] = c % 2 ? NAN : INFINITY;
      const auto y = fused.run(x, 2, input, mask);
      for (std::size_t i = 0; i < y.size(); ++i) EXPECT_TRUE(!mask[i / 32] || y[i] == clean[i]) << i;
    }
}

TEST_P(StepsTest, NanInAValidCellStaysInItsSequence) {
  const AxialAttention layer = attention_layer(32, 2);
  const CellShape input{6, 9, 32};  // several sequences share a block
  auto x = random_grid(input.cells() * 32);
  const FusedLayer fused(layer, random_layer_weights(layer), isa());
  const auto clean = fused.run(x, 1, input);
  x[(2 * 9 + 3) * 32 + 1] = NAN;
  const auto y = fused.run(x, 1, input);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_TRUE(i / 32 / 9 == 2 || y[i] == clean[i]) << i;
}

TEST_P(StepsTest, NanInACellShowsInItsOwnRow) {
  AxialAttention layer = attention_layer(32, 2);
  layer.residual = false;
  const CellShape input{1, 150, 32};
  auto x = random_grid(input.cells() * 32);
  x[70 * 32 + 1] = NAN;
  std::vector<std::uint8_t> mask(150, 1);
  mask[70] = 0;
  const auto y = FusedLayer(layer, random_layer_weights(layer), isa()).run(x, 1, input, mask);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 32 == 70) << i;
}

TEST_P(StepsTest, LargeMeans) {
  AxialAttention layer = attention_layer(64, 4);
  layer.residual = false;
  const CellShape input{2, 40, 64};
  auto x = random_grid(input.cells() * 64);
  for (float& v : x) v += 1e4f;
  const auto weights = random_layer_weights(layer);
  const auto y = FusedLayer(layer, weights, isa()).run(x, 1, input);
  EXPECT_LE(update_error(y, layer_in_loops(layer, weights, x, 1, input, {}), {}), 1e-5);
}

TEST_P(StepsTest, LargeScores) {
  AxialAttention layer = attention_layer(32, 2);
  layer.scale = 3000;
  const CellShape input{2, 200, 32};
  const auto x = random_grid(input.cells() * 32);
  const auto weights = random_layer_weights(layer);
  const auto y = FusedLayer(layer, weights, isa()).run(x, 1, input);
  EXPECT_LE(update_error(y, layer_in_loops(layer, weights, x, 1, input, {}), x), 1e-2);
}

TEST_P(StepsTest, SixteenBitPrecisions) {
  const AxialAttention attention = attention_layer(64, 4);
  FeedForward forward;
  forward.dim = 64, forward.hidden = 128;
  for (const graph::Layer* layer : std::initializer_list<const graph::Layer*>{&attention, &forward}) {
    const CellShape input{3, 70, 64};
    const double bf16 = error(*layer, true, 1, input, {}, Precision::bf16);
    const double fp16 = error(*layer, true, 1, input, {}, Precision::fp16);
    EXPECT_GT(bf16, 1e-3);  // it does round
    EXPECT_LT(bf16, 2e-2);
    EXPECT_GT(fp16, 1e-4);
    EXPECT_LT(fp16, 2.5e-3);
  }
}

// A trained model once ran at half its speed because its softmax and GELU tails were subnormal.
TEST_P(StepsTest, SubnormalsAreTakenAsZeroAndTheCallersModeIsKept) {
  graph::Linear linear;
  linear.dim = 32, linear.out = 48, linear.bias = false;
  weights::LayerWeights weights;
  weights.set("weight", Tensor::from({48, 32}, std::vector<float>(48 * 32, 1e-20f)));
  const CellShape input{3, 30, 32};
  const FusedLayer fused(linear, weights, isa());
  for (const int threads : {1, 3}) {
    const auto y = fused.run(std::vector<float>(90 * 32, 1e-20f), 1, input, {}, threads);
    for (const float v : y) ASSERT_EQ(v, 0);  // the exact result is 3.2e-39
    volatile float small = 1e-20f;
    EXPECT_GT(small * small * 10, 0) << "the caller's thread no longer has subnormal numbers";
  }
}

TEST_P(StepsTest, ScratchGrowsLinearlyWithTheLength) {
  const AxialAttention layer = attention_layer(128, 4);
  const FusedLayer fused(layer, random_layer_weights(layer), isa());
  const auto bytes = [&](std::int64_t length) {
    return double(fused.step->scratch_bytes({1, length, 128}, 2));
  };
  EXPECT_NEAR(bytes(8192) - bytes(4096), bytes(4096) - bytes(0 + 1), 0.1 * bytes(4096));
  // K and V of one sequence for each of the two threads and of as many that they share.
  EXPECT_LT(bytes(4096), 1.1 * (2 + 2) * 2 * 4096 * 128 * sizeof(float));
}

INSTANTIATE_TEST_SUITE_P(All, StepsTest, testing::ValuesIn(all_kernels()),
                         [](const auto& tested) { return std::string(tested.param->name); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StepsTest);

TEST(Isa, UnknownNamesAreAnError) {
  const ForcedIsa forced("sse9");
  try {
    cpu::fused::select_kernels();
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::input);
    EXPECT_NE(std::string(e.what()).find("avx512"), std::string::npos);
  }
}

TEST(Isa, EachCanBeForced) {
  for (const auto* kernels : all_kernels()) {
    const ForcedIsa forced(kernels->name);
    EXPECT_EQ(cpu::fused::select_kernels(), kernels);
  }
}

TEST(Claims, DeclinesDoublePrecision) {
  const AxialAttention layer = attention_layer(64, 4);
  plan::LayerProblem problem{&layer, {4, 4, 64}, {4, 4, 64}};
  plan::Conditions conditions;
  EXPECT_TRUE(bool(cpu::fused_implementation().claim({&problem, 1}, conditions)));
  conditions.precision = Precision::fp64;
  EXPECT_NE(cpu::fused_implementation().claim({&problem, 1}, conditions).declined.find("float32"),
            std::string::npos);
}

}  // namespace
}  // namespace warpweave::test
