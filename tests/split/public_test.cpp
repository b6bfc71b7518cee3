// The implementation `split` through the public interface: its three forms, against `reference` in float64.
//
//   split_gpu_tests                      needs a GPU; without one it says so and exits with 77
//   split_gpu_tests --compile sm_90a     fills the kernel cache with what it needs; needs no GPU
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <thread>

#include "cuda/backend.h"
#include "cuda/compile_for.h"
#include "gpu/support.h"
#include "model_data.h"
#include "properties/problem.h"

namespace warpweave::split_test {
namespace {

using gpu_test::DeviceMemory;
using properties::Attention;
using properties::Dice;
using properties::same_bits;

struct LayerCase {
  Attention attention;
  std::int64_t length, other;  // cells along the axis and across it
};

Attention layer(std::int64_t dim, std::int64_t heads, std::int64_t head_dim, const char* axis) {
  Attention a;
  a.dim = dim, a.heads = heads, a.head_dim = head_dim, a.axis = axis;
  return a;
}

// Five samples of the first ones are more sequences than the kernel for few of them takes, one is not.
std::vector<LayerCase> cases() {
  std::vector<LayerCase> list = {
      {layer(64, 4, 16, "row"), 32, 223},   {layer(64, 2, 32, "column"), 27, 223},
      {layer(48, 3, 16, "row"), 16, 223},   {layer(16, 2, 8, "column"), 5, 223},
      {layer(32, 2, 32, "row"), 32, 223},   {layer(64, 4, 16, "column"), 50, 7},
      {layer(128, 4, 32, "row"), 70, 3},    {layer(256, 8, 32, "column"), 257, 2},
      {layer(384, 8, 48, "column"), 60, 5}, {layer(200, 4, 64, "row"), 130, 3},
      {layer(100, 3, 40, "column"), 33, 5}, {layer(128, 4, 32, "column"), 300, 2},
  };
  list[1].attention.causal = true, list[1].attention.rope = "{style: half, dims: 20}";
  list[2].attention.norm = "rms", list[2].attention.residual = false, list[2].attention.qkv_bias = true;
  list[4].attention.rope = "{style: interleaved, dims: 32}";
  list[9].attention.causal = true, list[9].attention.qkv_bias = true;
  list[9].attention.rope = "{style: half, dims: 64}";
  list[10].attention.norm = "rms", list[10].attention.residual = false;
  return list;
}

Shape grid(const LayerCase& c, std::int64_t batch) {
  return c.attention.axis == "row" ? Shape{batch, c.other, c.length} : Shape{batch, c.length, c.other};
}

Model model(const LayerCase& c) { return properties::make_model(c.attention.dim, {c.attention.yaml()}, 7); }

EngineOptions options(Precision precision) {
  EngineOptions o;
  o.device = Device::cuda(0);
  o.precision = precision, o.plan = "split", o.strict = true;
  return o;
}

class SplitPublic : public testing::TestWithParam<std::tuple<std::size_t, Precision>> {
 protected:
  LayerCase c = cases()[std::get<0>(GetParam())];
  Precision precision = std::get<1>(GetParam());
  std::int64_t dim = c.attention.dim;
  Model m = model(c);
  Engine e = Engine(m, options(precision));
};

TEST_P(SplitPublic, AgreesWithFloat64AndKeepsItsBitsInAnyBatch) {
  const Engine cpu = properties::cpu_engine(m, "reference", Precision::fp64, 0);
  const Tensor x = properties::random_grid(grid(c, 5), dim, 3), mask = properties::random_mask(grid(c, 5), 4);
  const Tensor one = properties::samples(x, 1, 1), one_mask = properties::samples(mask, 1, 1);
  for (const bool masked : {false, true}) {
    const Tensor all = e.run(x, masked ? &mask : nullptr);
    const Tensor alone = e.run(one, masked ? &one_mask : nullptr);
    EXPECT_TRUE(same_bits(properties::samples(all, 1, 1), alone)) << masked;
    EXPECT_TRUE(same_bits(all, e.run(x, masked ? &mask : nullptr))) << masked;
    const Tensor exact = cpu.run(one, masked ? &one_mask : nullptr);
    EXPECT_LE(properties::update_error(alone, exact, one, c.attention.residual),
              precision == Precision::fp32 ? 1e-6 : 8e-4)
        << masked;
  }
}

TEST_P(SplitPublic, WhatIsInMaskedCellsReachesNoOther) {
  const Shape s = grid(c, 2);
  const Tensor clean = properties::random_grid(s, dim, 5), mask = properties::random_mask(s, 6, 70);
  const Tensor expected = e.run(clean, &mask);
  const auto keys = mask.values<std::uint8_t>();
  const auto want = expected.values<float>();
  for (const float poison : {NAN, INFINITY}) {
    Tensor x = clean;
    const auto values = x.values<float>();
    for (std::size_t k = 0; k < values.size(); ++k) {
      if (!keys[k / static_cast<std::size_t>(dim)]) values[k] = poison;
    }
    const Tensor y = e.run(x, &mask);
    const auto got = y.values<float>();
    int wrong = 0;
    for (std::size_t k = 0; k < got.size(); ++k)
      wrong += keys[k / static_cast<std::size_t>(dim)] && !(got[k] == want[k]);
    EXPECT_EQ(wrong, 0) << poison;
  }
}

TEST_P(SplitPublic, MayWriteOverItsInput) {
  for (const std::int64_t batch : {1, 5}) {
    const Tensor x = properties::random_grid(grid(c, batch), dim, 9), expected = e.run(x);
    Session session = e.prepare(grid(c, batch));
    const DeviceMemory memory(x);
    REQUIRE_CUDA(cudaDeviceSynchronize());
    session.run({memory.data(), DType::f32, session.input_shape()},
                {memory.data(), DType::f32, session.output_shape()});
    REQUIRE_CUDA(cudaDeviceSynchronize());
    Tensor y(DType::f32, x.shape());
    memory.copy_to(y);
    EXPECT_TRUE(same_bits(y, expected)) << batch;
  }
}

INSTANTIATE_TEST_SUITE_P(All, SplitPublic,
                         testing::Combine(testing::Range<std::size_t>(0, cases().size()),
                                          testing::Values(Precision::fp32, Precision::tf32)),
                         [](const auto& test) {
                           return std::to_string(std::get<0>(test.param)) + "_" +
                                  std::string(to_string(std::get<1>(test.param)));
                         });

// Sums of the softmax's weights leave their range where the maximum is not subtracted (scale 8), and q k is
// larger than float16 would hold (1000).
TEST(SplitScores, LargeOnesKeepTheirBitsInAnyBatch) {
  for (const char* scale : {"8", "1000"}) {
    LayerCase c{layer(64, 4, 16, "row"), 32, 223};
    c.attention.scale = scale;
    const Model m = model(c);
    const Tensor x = properties::random_grid(grid(c, 5), 64, 3), one = properties::samples(x, 1, 1);
    const Tensor exact = properties::cpu_engine(m, "reference", Precision::fp64, 0).run(one);
    for (const Precision precision : {Precision::fp32, Precision::tf32}) {
      const Engine e(m, options(precision));
      const Tensor alone = e.run(one);
      EXPECT_TRUE(same_bits(properties::samples(e.run(x), 1, 1), alone)) << scale;
      const bool huge = scale[1] != 0;
      const double limit = precision == Precision::fp32 ? (huge ? 2e-2 : 2e-4) : huge ? 2 : 0.3;
      EXPECT_LE(properties::update_error(alone, exact, one, true), limit) << scale;
    }
  }
}

constexpr int kRandomLayers = 44, kProblems = 13, kLeastRun = 500;

struct RandomLayer {
  Attention attention;
  Precision precision;
  bool masked;
};

RandomLayer random_layer(int index) {
  Dice dice(static_cast<std::uint64_t>(index) * 613 + 5);
  RandomLayer r;
  Attention& a = r.attention;
  a.dim = dice.pick<std::int64_t>({8, 20, 33, 48, 64, 64, 64, 100, 128, 128, 200, 256, 264, 384});
  a.heads = dice.pick<std::int64_t>({1, 2, 3, 4, 4, 5, 8});
  a.head_dim = dice.pick<std::int64_t>({4, 8, 16, 16, 24, 32, 40, 64});
  properties::draw_options(a, dice, {"layer", "layer", "rms"});
  r.precision = dice.chance(50) ? Precision::fp32 : Precision::tf32;
  r.masked = dice.chance(40);
  return r;
}

// Lengths about the sizes of tiles and beyond; one to three samples.
Shape random_shape(const RandomLayer& r, Dice& dice) {
  const std::int64_t longest = dice.pick<std::int64_t>({16, 32, 32, 64, 150, 300});
  const std::int64_t length = 1 + dice.below(longest), other = 1 + dice.below(1 + 300 / longest);
  const std::int64_t batch = 1 + dice.below(3);
  return r.attention.axis == "row" ? Shape{batch, other, length} : Shape{batch, length, other};
}

Model random_model(int index) {
  const Attention a = random_layer(index).attention;
  return properties::make_model(a.dim, {a.yaml()}, static_cast<std::uint64_t>(index));
}

TEST(SplitRandom, ProblemsAgreeWithFloat64) {
  int run = 0, declined = 0;
  double worst[2] = {0, 0};
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (int i = 0; i < kRandomLayers; ++i) {
    const RandomLayer r = random_layer(i);
    const Model m = random_model(i);
    const Engine gpu(m, options(r.precision));
    const Engine cpu = properties::cpu_engine(m, "reference", Precision::fp64, threads);
    Dice dice(static_cast<std::uint64_t>(i));
    for (int k = 0; k < kProblems; ++k) {
      const Shape s = random_shape(r, dice);
      const auto seed = static_cast<std::uint64_t>(i * kProblems + k);
      const Tensor x = properties::random_grid(s, r.attention.dim, seed),
                   mask = properties::random_mask(s, seed);
      const Tensor* used = r.masked ? &mask : nullptr;
      const auto y = properties::run_unless_declined(gpu, x, used);
      if (!y) {
        ++declined;
        continue;
      }
      ++run;
      const double error = properties::update_error(*y, cpu.run(x, used), x, r.attention.residual);
      double& most = worst[r.precision == Precision::tf32];
      most = std::max(most, error);
      EXPECT_LE(error, gpu_test::loose_limit(r.precision))
          << r.attention.yaml() << " " << s.batch << "," << s.rows << "," << s.columns;
    }
  }
  std::printf("split: %d run, %d declined; worst error fp32 %.2e, tf32 %.2e\n", run, declined, worst[0],
              worst[1]);
  EXPECT_GE(run, kLeastRun);
}

void compile_all(const std::string& architecture) {
  const std::vector<LayerCase> list = cases();
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < 2 * list.size() + kRandomLayers; i = next++) {
        if (i < 2 * list.size()) {
          const LayerCase& c = list[i / 2];
          cuda::compile_for(model(c).data()->graph, grid(c, 1), architecture,
                            options(i % 2 ? Precision::tf32 : Precision::fp32));
          continue;
        }
        const int index = static_cast<int>(i - 2 * list.size());
        const RandomLayer r = random_layer(index);
        const Model m = random_model(index);
        EngineOptions o = options(r.precision);
        o.strict = false;
        Dice dice(static_cast<std::uint64_t>(index));
        for (int k = 0; k < kProblems; ++k)
          cuda::compile_for(m.data()->graph, random_shape(r, dice), architecture, o);
      }
    });
  }
}

}  // namespace
}  // namespace warpweave::split_test

int main(int argc, char** argv) {
  using namespace warpweave;
  testing::InitGoogleTest(&argc, argv);
  if (argc == 3 && std::string(argv[1]) == "--compile") return split_test::compile_all(argv[2]), 0;
  if (const std::string reason = cuda::unusable(0); !reason.empty()) {
    std::printf("GPU tests skipped: %s\n", reason.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
