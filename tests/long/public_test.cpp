// The implementation `long` through the public interface, against `reference` in float64 on the CPU.
//
//   long_gpu_tests                      needs a GPU; without one it says so and exits with 77
//   long_gpu_tests --compile sm_90a     fills the kernel cache with what it needs; needs no GPU
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cuda/backend.h"
#include "cuda/compile_for.h"
#include "model_data.h"
#include "properties/problem.h"
#include "warpweave/error.h"
#include "whole_layer_test.h"
#include "wide_layer_test.h"

namespace warpweave::long_test {
namespace {

using properties::Attention;
using properties::Dice;
using properties::rounded;
using properties::update_error;

constexpr int kLayers = 58, kProblems = 10, kLeastRun = 500;

struct LayerCase {
  Attention attention;
  Precision precision = Precision::bf16;
  bool masked = false;
};

// Options of a layer: with the bucket of lengths that the attention has, one specialisation of every kernel.
// A few are of sizes that are declined.
LayerCase layer_case(int index) {
  Dice dice(static_cast<std::uint64_t>(index) * 977 + 11);
  LayerCase c;
  Attention& a = c.attention;
  a.dim = dice.pick<std::int64_t>({8, 24, 40, 64, 64, 72, 96, 128, 128, 128, 136, 192, 248, 256, 256});
  a.heads = dice.pick<std::int64_t>({1, 2, 3, 4, 4, 5, 8});
  a.head_dim = dice.pick<std::int64_t>({5, 8, 16, 16, 24, 32, 32, 48, 64});
  if (a.heads * ((a.head_dim + 15) / 16 * 16) > 256) a.heads = 4;
  if (index % 13 == 12) a.dim = dice.chance(50) ? 20 : 264;  // declined
  properties::draw_options(a, dice, {"layer", "layer", "rms", "none"});
  c.precision = dice.chance(50) ? Precision::bf16 : Precision::fp16;
  c.masked = dice.chance(40);
  return c;
}

Model model(int index) {
  const LayerCase c = layer_case(index);
  return properties::make_model(c.attention.dim, {c.attention.yaml()}, static_cast<std::uint64_t>(index));
}

// One or two samples of a few sequences; lengths of every bucket, seldom a whole number of tiles.
Shape shape(const LayerCase& c, Dice& dice) {
  const std::int64_t longest = dice.pick<std::int64_t>({16, 32, 64, 130, 200});
  const std::int64_t length = 1 + dice.below(longest);
  const std::int64_t other = 1 + dice.below(1 + 300 / longest), batch = 1 + dice.below(2);
  return c.attention.axis == "row" ? Shape{batch, other, length} : Shape{batch, length, other};
}

EngineOptions options(Precision precision, std::int64_t limit = 0) {
  EngineOptions o;
  o.device = Device::cuda(0);
  o.precision = precision, o.plan = "long", o.strict = true, o.workspace_limit = limit;
  return o;
}

// Moves every token whose number is `first` modulo `step` far away from zero: its mean, not its spread.
void move_away(Tensor& x, std::int64_t first, std::int64_t step, float offset) {
  const std::int64_t dim = x.shape().back(),
                     tokens = static_cast<std::int64_t>(x.values<float>().size()) / dim;
  float* values = x.values<float>().data();
  for (std::int64_t t = first; t < tokens; t += step)
    for (std::int64_t c = 0; c < dim; ++c) values[t * dim + c] += offset;
}

// The rounding of y alone, which no implementation avoids, comes to most of this where the update is small.
double limit(Precision precision) { return precision == Precision::bf16 ? 1.5e-2 : 2e-3; }

TEST(Long, RandomProblemsAgreeWithFloat64) {
  int run = 0, declined = 0;
  double worst[2] = {0, 0};
  const int threads = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
  for (int i = 0; i < kLayers; ++i) {
    const LayerCase c = layer_case(i);
    const Model m = model(i);
    const Engine gpu(m, options(c.precision));
    const Engine cpu = properties::cpu_engine(m, "reference", Precision::fp64, threads);
    Dice dice(static_cast<std::uint64_t>(i));
    for (int k = 0; k < kProblems; ++k) {
      const Shape s = shape(c, dice);
      const std::uint64_t seed = static_cast<std::uint64_t>(i * kProblems + k);
      Tensor drawn = properties::random_grid(s, c.attention.dim, seed);
      // Where y does not hold x, whose rounding would hide the update.
      if (!c.attention.residual && c.attention.norm == "layer" && k % 2 == 1)
        move_away(drawn, 1, 3, k % 4 == 1 ? 60.0f : 7.0f);
      const Tensor x = rounded(drawn, c.precision);
      const Tensor mask = properties::random_mask(s, seed);
      const Tensor* used = c.masked ? &mask : nullptr;
      const auto y = properties::run_unless_declined(gpu, x, used);
      if (!y) {
        ++declined;
        continue;
      }
      ++run;
      const double error = update_error(*y, cpu.run(x, used), x, c.attention.residual);
      worst[c.precision == Precision::fp16] = std::max(worst[c.precision == Precision::fp16], error);
      EXPECT_LE(error, limit(c.precision))
          << c.attention.yaml() << " dim " << c.attention.dim << " " << to_string(c.precision) << " on ["
          << s.batch << ", " << s.rows << ", " << s.columns << "]" << (c.masked ? " masked" : "");
    }
  }
  std::printf("long: %d run, %d declined; worst error bf16 %.2e, fp16 %.2e\n", run, declined, worst[0],
              worst[1]);
  EXPECT_GE(run, kLeastRun);
  EXPECT_GT(declined, 0);
}

// One problem of each form of the kernels, small enough for compute-sanitizer.
const std::vector<LayerCase>& few() {
  static const std::vector<LayerCase> list = [] {
    LayerCase narrow, wide;
    narrow.attention.axis = "column", narrow.attention.dim = 72, narrow.attention.heads = 3;
    narrow.attention.head_dim = 24, narrow.attention.rope = "{style: half, dims: 20}";
    narrow.precision = Precision::fp16, narrow.masked = true;
    wide.attention.dim = 248, wide.attention.heads = 4, wide.attention.head_dim = 64,
    wide.attention.qkv_bias = true;
    return std::vector<LayerCase>{narrow, wide};
  }();
  return list;
}

Model model(const LayerCase& c) { return properties::make_model(c.attention.dim, {c.attention.yaml()}); }

TEST(Long, FewProblems) {
  for (const LayerCase& c : few()) {
    const Model m = model(c);
    const Shape s{2, 5, 81};
    const Tensor x = rounded(properties::random_grid(s, c.attention.dim, 1), c.precision);
    const Tensor mask = properties::random_mask(s, 1);
    const Tensor* used = c.masked ? &mask : nullptr;
    const Tensor y = Engine(m, options(c.precision)).run(x, used);
    const Tensor exact = properties::cpu_engine(m, "reference", Precision::fp64).run(x, used);
    EXPECT_LE(update_error(y, exact, x, true), limit(c.precision)) << c.attention.yaml();
  }
}

// Heads and lengths for which the attention is Hopper's own kernel.
struct AttentionCase {
  LayerCase layer;
  std::int64_t length = 0;
  bool steep = false;  // scores so large that weights leave the range of their type
};

std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> list;
  int turn = 0;
  for (const std::int64_t head_dim : {32, 40, 48, 64}) {
    for (const std::int64_t length : {40, 64, 100, 150, 256, 321, 700}) {
      for (const Precision precision : {Precision::bf16, Precision::fp16}) {
        AttentionCase c;
        Attention& a = c.layer.attention;
        a.dim = 64, a.head_dim = head_dim, a.qkv_bias = true;
        a.heads =
            head_dim == 32 || head_dim == 48 ? 4 : 3;  // with 4 the kernel ends with the output projection
        a.axis = turn % 2 ? "row" : "column", a.causal = turn % 3 == 0;
        c.layer.precision = precision;
        c.length = length, c.steep = turn % 5 == 2;
        if (c.steep) a.scale = "3.0";
        if (turn % 4 == 1) a.rope = "{style: half, dims: 32}";
        list.push_back(c);
        ++turn;
      }
    }
  }
  return list;
}

Shape shape(const AttentionCase& c, std::int64_t batch) {
  return c.layer.attention.axis == "row" ? Shape{batch, 2, c.length} : Shape{batch, c.length, 2};
}

// By this plan and by the other one that uses it; a sample has the same bits alone and with others.
TEST(Long, HoppersAttentionAgreesWithFloat64) {
  double worst[2][2] = {};
  for (const AttentionCase& c : attention_cases()) {
    const Attention& a = c.layer.attention;
    const Precision precision = c.layer.precision;
    const Model m = properties::make_model(a.dim, {a.yaml()});
    const Tensor x = rounded(properties::random_grid(shape(c, 3), a.dim, 7), precision);
    const Tensor exact = properties::cpu_engine(m, "reference", Precision::fp64, 8).run(x);
    for (const char* plan : {"long", "composed"}) {
      EngineOptions o = options(precision);
      o.plan = plan;
      const Engine gpu(m, o);
      const Tensor y = gpu.run(x);
      const double error = update_error(y, exact, x, true), allowed = limit(precision) * (c.steep ? 12 : 1);
      double& most = worst[precision == Precision::fp16][c.steep];
      most = std::max(most, error);
      const auto what = [&] {
        return std::string(plan) + " " + std::string(to_string(precision)) + " " + a.yaml() + " length " +
               std::to_string(c.length);
      };
      EXPECT_LE(error, allowed) << what();
      EXPECT_TRUE(properties::same_bits(gpu.run(properties::samples(x, 0, 1)), properties::samples(y, 0, 1)))
          << what();
    }
  }
  std::printf("Hopper's attention: worst error bf16 %.2e, fp16 %.2e; steep scores %.2e, %.2e\n", worst[0][0],
              worst[1][0], worst[0][1], worst[1][1]);
}

// Weights far from 1, in both directions, times values up to 2^30: neither infinite nor zero.
std::vector<AttentionCase> far_cases() {
  std::vector<AttentionCase> list;
  for (const std::int64_t head_dim : {32, 48, 64}) {
    for (const bool causal : {false, true}) {  // where causal, there are rows all of whose weights are tiny
      AttentionCase c;
      Attention& a = c.layer.attention;
      a.dim = 64, a.heads = 4, a.head_dim = head_dim, a.norm = "none", a.out_bias = false, a.causal = causal;
      c.length = 150;
      list.push_back(c);
    }
  }
  return list;
}
constexpr int kFarExponents[] = {30, -9};  // of the values; a scale is at most 10^6

std::string far_scale(int exponent) {
  std::ostringstream text;
  text << std::ldexp(2.5, -2 * exponent);  // scores to base 2 spread by 20 to 30
  return text.str();
}

TEST(Long, ValuesMayBeLargeUnderSteepScores) {
  double worst = 0;
  for (AttentionCase c : far_cases()) {
    for (const int exponent : kFarExponents) {
      Attention& a = c.layer.attention;
      a.scale = far_scale(exponent);
      const Model m = properties::make_model(a.dim, {a.yaml()});
      Tensor x = rounded(properties::random_grid(shape(c, 2), a.dim, 7), Precision::bf16);
      for (float& v : x.values<float>()) v = std::ldexp(v, exponent);
      const Tensor exact = properties::cpu_engine(m, "reference", Precision::fp64, 8).run(x);
      for (const char* plan : {"long", "composed"}) {
        EngineOptions o = options(Precision::bf16);
        o.plan = plan;
        const double error = update_error(Engine(m, o).run(x), exact, x, true);
        worst = std::max(worst, error);
        EXPECT_LE(error, 0.05) << plan << " " << a.yaml() << " values around 2^" << exponent;
      }
    }
  }
  std::printf("values around 2^30 and 2^-9 under steep scores: worst error %.2e\n", worst);
}

// In any batch, in slices of any size, and again; beside tokens of another kind too.
TEST(Long, ASampleKeepsItsBits) {
  for (const std::int64_t dim : {64, 256}) {
    const Model m = properties::make_block(dim, 4);
    Tensor x = properties::random_grid({9, 37, 83}, dim, 3);
    move_away(x, 37 * 83 + 3, 37 * 83, 500.0f);
    for (const Precision precision : {Precision::bf16, Precision::fp16}) {
      const Tensor all = Engine(m, options(precision)).run(x);
      EXPECT_TRUE(properties::same_bits(all, Engine(m, options(precision)).run(x)));
      for (const std::int64_t batch : {1, 4})
        EXPECT_TRUE(properties::same_bits(Engine(m, options(precision)).run(properties::samples(x, 0, batch)),
                                          properties::samples(all, 0, batch)))
            << dim << " " << batch;
      const std::int64_t grid = 2 * 37 * 83 * dim * 2 + 4096;  // what waits between the layers
      for (const std::int64_t sequences : {1, 3, 20})
        EXPECT_TRUE(properties::same_bits(
            Engine(m, options(precision, grid + sequences * 83 * dim * 8)).run(properties::samples(x, 0, 2)),
            properties::samples(all, 0, 2)))
            << dim << " " << sequences;
    }
  }
}

// Attention that ends with the output projection writes y itself, at the cells of its slice.
TEST(Long, SlicesEndWithTheOutputProjection) {
  const Model m = properties::make_block(128, 4);
  for (const Shape& s : {Shape{2, 6, 150}, Shape{2, 150, 6}}) {
    const Tensor x = properties::random_grid(s, 128, 5);
    for (const Precision precision : {Precision::bf16, Precision::fp16}) {
      const Tensor all = Engine(m, options(precision)).run(x);
      const std::int64_t grid = 2 * 6 * 150 * 128 * 2 + 4096;  // what waits between the layers
      for (const std::int64_t sequences : {1, 4, 7})
        EXPECT_TRUE(properties::same_bits(
            Engine(m, options(precision, grid + sequences * 150 * 128 * 8)).run(x), all))
            << s.rows << " " << sequences;
    }
  }
}

TEST(Long, SaysWhatItDeclines) {
  const auto said = [](std::int64_t dim, const std::string& layer, Precision precision) {
    try {
      Engine(properties::make_model(dim, {layer}), options(precision)).prepare({1, 4, 4});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("nothing");
  };
  const auto contains = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const std::string small = said(20, "axial_attention: {axis: row, heads: 2, head_dim: 8}", Precision::bf16);
  EXPECT_TRUE(contains(small, "dim 20 is not a multiple of 8")) << small;
  const std::string wide = said(512, "axial_attention: {axis: row, heads: 2, head_dim: 8}", Precision::bf16);
  EXPECT_TRUE(contains(wide, "dim 512 is larger than 256")) << wide;
  const std::string heads = said(64, "axial_attention: {axis: row, heads: 9, head_dim: 32}", Precision::bf16);
  EXPECT_TRUE(contains(heads, "9 heads of 32 channels")) << heads;
  const std::string exact = said(64, "axial_attention: {axis: row, heads: 2}", Precision::fp32);
  EXPECT_TRUE(contains(exact, "not fp32")) << exact;
}

struct Work {
  Model model;
  Shape shape;
  Precision precision;
};

void compile(const Work& w, const std::string& architecture, const char* plan) {
  try {
    EngineOptions o = options(w.precision);
    o.plan = plan;
    cuda::compile_for(w.model.data()->graph, w.shape, architecture, o);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::device) throw;  // declined
  }
}

void compile_all(const std::string& architecture) {
  std::vector<Work> list;
  for (int i = 0; i < kLayers; ++i)
    for (const std::int64_t length : {16, 32, 64, 200}) {
      const LayerCase c = layer_case(i);
      list.push_back(
          {model(i), c.attention.axis == "row" ? Shape{1, 1, length} : Shape{1, length, 1}, c.precision});
    }
  for (const AttentionCase& c : attention_cases())
    list.push_back({properties::make_model(c.layer.attention.dim, {c.layer.attention.yaml()}), shape(c, 1),
                    c.layer.precision});
  for (const AttentionCase& c : far_cases())
    list.push_back({properties::make_model(c.layer.attention.dim, {c.layer.attention.yaml()}), shape(c, 1),
                    Precision::bf16});
  for (const Precision precision : {Precision::bf16, Precision::fp16})
    for (const std::int64_t dim : {64, 256})
      list.push_back({properties::make_block(dim, 4), {1, 37, 83}, precision});
  for (const LayerCase& c : few()) list.push_back({model(c), {1, 5, 81}, c.precision});
  for (const Precision precision : {Precision::bf16, Precision::fp16})
    for (const Shape& s : {Shape{1, 6, 150}, Shape{1, 150, 6}})
      list.push_back({properties::make_block(128, 4), s, precision});
  for_whole_layers([&](const Model& m, const Shape& s, Precision precision) {
    list.push_back({m, s, precision});
  });
  for_wide_layers([&](const Model& m, const Shape& s, Precision precision) {
    list.push_back({m, s, precision});
  });
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < std::thread::hardware_concurrency(); ++t)
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < list.size(); i = next++)
        for (const char* plan : {"long", "composed"}) compile(list[i], architecture, plan);
    });
}

}  // namespace
}  // namespace warpweave::long_test

int main(int argc, char** argv) {
  using namespace warpweave;
  testing::InitGoogleTest(&argc, argv);
  if (argc == 3 && std::string(argv[1]) == "--compile") {
    long_test::compile_all(argv[2]);
    return 0;
  }
  if (const std::string reason = cuda::unusable(0); !reason.empty()) {
    std::printf("GPU tests skipped: %s\n", reason.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
