// The implementation `resident` through the public interface, against `reference` in float64 on the CPU.
//
//   resident_gpu_tests                      needs a GPU; without one it says so and exits with 77
//   resident_gpu_tests --compile sm_90a     fills the kernel cache with what it needs; needs no GPU
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cuda/backend.h"
#include "cuda/compile_for.h"
#include "model_data.h"
#include "properties/problem.h"
#include "warpweave/error.h"

namespace warpweave::resident_test {
namespace {

using properties::Attention;
using properties::Dice;

constexpr int kLayers = 52, kProblems = 11, kLeastRun = 500;

struct LayerCase {
  Attention attention;
  Precision precision = Precision::bf16;
  std::int64_t longest = 32;
  bool masked = false;
};

// Options of a layer, and the bucket of lengths it is run in: one specialisation (two where short sequences
// have two kernels). A few are of sizes that are declined.
LayerCase layer_case(int index) {
  Dice dice(static_cast<std::uint64_t>(index) * 131 + 5);
  LayerCase c;
  Attention& a = c.attention;
  a.dim = dice.pick<std::int64_t>({8, 16, 24, 32, 40, 64, 64, 72, 96, 128, 128, 160, 192, 256});
  a.heads = dice.pick<std::int64_t>({1, 2, 3, 4, 4, 5, 8});
  a.head_dim = dice.pick<std::int64_t>({8, 16, 16, 24, 32, 32, 40, 64});
  if (index % 13 == 12) a.head_dim = 12;  // declined
  a.axis = dice.chance(50) ? "row" : "column";
  a.norm = dice.pick<std::string>({"layer", "layer", "rms", "none"});
  a.qkv_bias = dice.chance(40), a.out_bias = dice.chance(75), a.residual = dice.chance(75);
  a.causal = dice.chance(30);
  if (dice.chance(20)) a.scale = dice.pick<std::string>({"0.3", "0.05", "-0.2"});
  if (dice.chance(35))
    a.rope = "{style: " + dice.pick<std::string>({"half", "interleaved"}) +
             ", dims: " + std::to_string(2 * (1 + dice.below(a.head_dim / 2))) + "}";
  c.precision = dice.chance(50) ? Precision::bf16 : Precision::fp16;
  c.longest = dice.pick<std::int64_t>({16, 32, 32, 48, 64, 64, 128, 128, 192, 256});
  if (a.dim > 192 || a.head_dim > 40) c.longest = std::min<std::int64_t>(c.longest, 128);
  c.masked = dice.chance(40);
  return c;
}

Model model(int index) {
  const LayerCase c = layer_case(index);
  return properties::make_model(c.attention.dim, {c.attention.yaml()}, static_cast<std::uint64_t>(index));
}

Shape shape(const LayerCase& c, Dice& dice) {
  std::int64_t least = 1;  // of the bucket
  for (const std::int64_t slot : {16, 32, 48, 64, 128, 192, 256})
    if (slot < c.longest) least = slot + 1;
  const std::int64_t length = least + dice.below(c.longest - least + 1);
  const std::int64_t other = 1 + dice.below(1 + 256 / c.longest), batch = 1 + dice.below(2);
  return c.attention.axis == "row" ? Shape{batch, other, length} : Shape{batch, length, other};
}

EngineOptions options(Precision precision) {
  EngineOptions o;
  o.device = Device::cuda(0);
  o.precision = precision, o.plan = "resident", o.strict = true;
  return o;
}

Tensor rounded(const Tensor& x, Precision precision) { return x.to(storage_type(precision)).to(DType::f32); }

double update_error(const Tensor& y, const Tensor& exact, const Tensor& x, bool residual) {
  const auto a = y.values<float>(), b = exact.values<float>(), c = x.values<float>();
  double error = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double delta = static_cast<double>(b[i]) - (residual ? static_cast<double>(c[i]) : 0.0);
    error += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    size += delta * delta;
  }
  return std::sqrt(error / std::max(size, 1e-30));
}

// The rounding of y alone, which no implementation avoids, comes to most of this where the update is small.
double limit(Precision precision) { return precision == Precision::bf16 ? 1.5e-2 : 2e-3; }

TEST(Resident, RandomProblemsAgreeWithFloat64) {
  int run = 0, declined = 0;
  double worst[2] = {0, 0};
  for (int i = 0; i < kLayers; ++i) {
    const LayerCase c = layer_case(i);
    const Model m = model(i);
    const Engine gpu(m, options(c.precision));
    const Engine cpu = properties::cpu_engine(m, "reference", Precision::fp64, 8);
    Dice dice(static_cast<std::uint64_t>(i));
    for (int k = 0; k < kProblems; ++k) {
      const Shape s = shape(c, dice);
      const std::uint64_t seed = static_cast<std::uint64_t>(i * kProblems + k);
      const Tensor x = rounded(properties::random_grid(s, c.attention.dim, seed), c.precision);
      const Tensor mask = properties::random_mask(s, seed);
      const Tensor* used = c.masked ? &mask : nullptr;
      Tensor y;
      try {
        y = gpu.run(x, used);
      } catch (const Error& e) {
        ASSERT_EQ(e.code(), ErrorCode::device) << e.what();
        ++declined;
        continue;
      }
      ++run;
      const Tensor exact = cpu.run(x, used);
      // Interface types are exact here: what the grid between layers rounds to is what y is compared as.
      const double error = update_error(y, exact, x, c.attention.residual);
      worst[c.precision == Precision::fp16] = std::max(worst[c.precision == Precision::fp16], error);
      EXPECT_LE(error, limit(c.precision))
          << c.attention.yaml() << " dim " << c.attention.dim << " " << to_string(c.precision) << " on ["
          << s.batch << ", " << s.rows << ", " << s.columns << "]" << (c.masked ? " masked" : "");
    }
  }
  std::printf("resident: %d run, %d declined; worst error bf16 %.2e, fp16 %.2e\n", run, declined, worst[0],
              worst[1]);
  EXPECT_GE(run, kLeastRun);
  EXPECT_GT(declined, 0);
}

// Few sequences and many are run by different kernels: the bits must not tell.
TEST(Resident, ASampleKeepsItsBitsInAnyBatch) {
  const Model m = properties::make_block(64, 4);
  const Tensor x = properties::random_grid({96, 32, 32}, 64, 3);
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const Engine e(m, options(precision));
    const Tensor all = e.run(x);
    EXPECT_TRUE(properties::same_bits(all, e.run(x)));
    for (const std::int64_t batch : {1, 4, 40})
      EXPECT_TRUE(
          properties::same_bits(e.run(properties::samples(x, 0, batch)), properties::samples(all, 0, batch)))
          << batch;
  }
}

TEST(Resident, SaysWhatItDeclines) {
  const Model m = properties::make_model(20, {"axial_attention: {axis: row, heads: 2, head_dim: 8}"});
  try {
    Engine(m, options(Precision::bf16)).prepare({1, 4, 4});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("dim 20 is not a multiple of 8"), std::string::npos) << e.what();
  }
}

void compile(const Model& m, const Shape& s, Precision precision, const std::string& architecture) {
  try {
    cuda::compile_for(m.data()->graph, s, architecture, options(precision));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::device) throw;  // declined
  }
}

void compile_all(const std::string& architecture) {
  for (int i = 0; i < kLayers; ++i) {
    const LayerCase c = layer_case(i);
    const std::int64_t l = c.longest;
    compile(model(i), c.attention.axis == "row" ? Shape{1, 1, l} : Shape{1, l, 1}, c.precision, architecture);
  }
  for (const Precision precision : {Precision::bf16, Precision::fp16})
    compile(properties::make_block(64, 4), {1, 32, 32}, precision, architecture);
}

}  // namespace
}  // namespace warpweave::resident_test

int main(int argc, char** argv) {
  using namespace warpweave;
  testing::InitGoogleTest(&argc, argv);
  if (argc == 3 && std::string(argv[1]) == "--compile") {
    resident_test::compile_all(argv[2]);
    return 0;
  }
  if (const std::string reason = cuda::unusable(0); !reason.empty()) {
    std::printf("GPU tests skipped: %s\n", reason.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
