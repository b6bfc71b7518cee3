// warpweave bench: its table, its JSON, and that it checks before it times.
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "bench/correctness.h"
#include "bench/measure.h"
#include "bench/suites.h"
#include "cli/models.h"
#include "cli/process.h"

namespace warpweave::test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(Bench, EveryPlanOfAModel) {
  const BlockFiles f;
  const std::string path = f.folder / "b.json";
  const Outcome o = warpweave({"bench", "--config", f.config, "--shape", "2,3,5", "--device", "cpu", "--plan",
                               "all", "--seconds", "0", "--repeat", "9", "--json", path});
  ASSERT_EQ(o.status, 0) << o.err;
  for (const char* word : {"median ms", "GFLOP/s", "GB/s", "error", "block", "[2, 3, 5, 8]", "reference"})
    EXPECT_THAT(o.out, HasSubstr(word));
  const auto json = nlohmann::json::parse(read_file(path));
  EXPECT_EQ(json["device"].get<std::string>(), "cpu");
  EXPECT_EQ(json["precision"].get<std::string>(), "fp32");
  EXPECT_GE(json["threads"].get<int>(), 1);
  std::vector<std::string> plans;
  for (const auto& r : json["results"]) {
    plans.push_back(r["plan"]);
    EXPECT_EQ(r["name"], "block");
    EXPECT_EQ(r["shape"], (std::vector<int>{2, 3, 5, 8}));
    EXPECT_EQ(r["runs"], 9);
    EXPECT_LE(r["min_ms"].get<double>(), r["median_ms"].get<double>());
    EXPECT_LE(r["median_ms"].get<double>(), r["max_ms"].get<double>());
    EXPECT_GT(r["gflop_per_s"].get<double>(), 0);
    EXPECT_LT(r["error"].get<double>(), 1e-6);
    EXPECT_TRUE(r["failure"].is_null());
  }
  EXPECT_THAT(plans, Contains("reference"));
}

TEST(Bench, ACaseOfTheSuite) {
  const Outcome o =
      warpweave({"bench", "--suite", "cpu", "--only", "seed", "--seconds", "0", "--repeat", "1"});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("[4, 32, 32, 64]"));
}

// Within the contract's limits, which is what exit status 0 says.
TEST(Bench, EveryPrecision) {
  for (const char* precision : {"fp64", "fp32", "tf32", "bf16", "fp16"}) {
    const Outcome o = warpweave({"bench", "--suite", "cpu", "--only", "seed", "--seconds", "0", "--repeat",
                                 "1", "--device", "cpu", "--precision", precision});
    EXPECT_EQ(o.status, 0) << precision << ": " << o.out << o.err;
  }
}

TEST(Bench, TheGpuSuiteNeedsAGpu) {
  const BlockFiles f;
  bool gpu = true;
  try {
    (void)Engine(Model::load(f.config, f.weights), {.device = Device::cuda()});
  } catch (const Error&) {
    gpu = false;
  }
  if (gpu) GTEST_SKIP() << "a GPU is here; what is tested is its absence";
  const Outcome o = warpweave({"bench", "--suite", "gpu"});
  EXPECT_EQ(o.status, 3);
  EXPECT_THAT(o.err, HasSubstr("warpweave: error: "));
}

TEST(Bench, AutoAgainstTheBestSinglePlan) {
  const std::vector<std::string> arguments = {"bench",     "--suite", "cpu",      "--only", "seed",
                                              "--seconds", "0",       "--repeat", "3",      "--check-auto"};
  auto with = [&](const std::string& percent) {
    auto a = arguments;
    a.push_back(percent);
    return warpweave(a);
  };
  const Outcome good = with("900%");
  EXPECT_EQ(good.status, 0) << good.err << good.out;
  EXPECT_THAT(good.out, HasSubstr("auto takes "));
  EXPECT_THAT(good.out, HasSubstr("times the best single plan, cpu_fused"));
  for (const char* bad : {"5", "x%", "5%%", "-1%", "nan%"}) {
    const Outcome o = with(bad);
    EXPECT_EQ(o.status, 2) << bad;
    EXPECT_THAT(o.err, HasSubstr("--check-auto")) << bad;
  }
  // Both sides are timed, so that the comparison can fail: `reference` is the best of itself and auto, turned
  // round.
  bench::Measurement fast, slow;
  fast.plan = "auto";
  slow.plan = "reference";
  fast.times = {1, 1, 1};
  slow.times = {2, 2, 2};
  EXPECT_DOUBLE_EQ(bench::check_auto({fast, slow}).ratio, 0.5);
  std::swap(fast.plan, slow.plan);
  EXPECT_DOUBLE_EQ(bench::check_auto({fast, slow}).ratio, 2);
  EXPECT_EQ(bench::check_auto({fast}).best, "");
}

TEST(Bench, OnceAndUnknownCases) {
  EXPECT_EQ(warpweave({"bench", "--suite", "cpu", "--only", "seed,image", "--once"}).status, 0);
  EXPECT_THAT(warpweave({"bench", "--suite", "gpu", "--list"}).out, HasSubstr("msa 1 256 384 256 8\n"));
  EXPECT_EQ(warpweave({"bench", "--list"}).status, 2);
  EXPECT_EQ(warpweave({"bench", "--suite", "cpu", "--only", "seed,nonesuch"}).status, 2);
  EXPECT_EQ(warpweave({"bench", "--suite", "cpu", "--once", "--check-auto", "5%"}).status, 2);
}

TEST(Bench, TheErrorIsMeasuredAgainstTheReference) {
  const BlockFiles f;
  const Model model = Model::load(f.config, f.weights);
  const Engine half(model, {.device = Device::cpu(), .precision = Precision::fp16});
  const Engine single(model, {.device = Device::cpu()});
  for (const Shape& shape : {Shape{1, 40, 24}, Shape{3, 6, 7}}) {
    Session a = half.prepare(shape), b = single.prepare(shape);
    for (const auto& exact :
         {bench::ExactResults::of_model(model, shape), bench::ExactResults::of_block(model, shape)}) {
      const double error = exact.error(half, a);
      EXPECT_GT(error, bench::error_limit(Precision::fp32, 2));  // half precision is no single precision
      EXPECT_LT(error, 1e-2);
      EXPECT_LT(exact.error(single, b), bench::error_limit(Precision::fp32, 2));
    }
  }
}

// Results that belong to other weights, and ones that are no numbers, are found.
TEST(Bench, WrongResultsAreFound) {
  const bench::BlockCase block{"block", 2, 12, 20, 16, 2};
  const Shape shape{block.batch, block.rows, block.columns};
  const Model model = bench::block_model(block);
  const BlockFiles f;
  const auto exact = bench::ExactResults::of_block(model, shape);
  const std::string config = f.folder / "other.yaml";
  write_file(config,
             "name: other\ninput: {dim: 16}\nlayers:\n"
             "  - axial_attention: {axis: row, heads: 2}\n  - axial_attention: {axis: column, heads: 2}\n");
  const Engine engine(Model::random(config, 5), {.device = Device::cpu()});
  Session session = engine.prepare(shape);
  EXPECT_GT(exact.error(engine, session), 0.1);
  // The layers in the other order: found although most lines of the input are copies.
  write_file(config,
             "name: other\ninput: {dim: 16}\nlayers:\n"
             "  - axial_attention: {axis: column, heads: 2}\n  - axial_attention: {axis: row, heads: 2}\n");
  const Engine swapped(Model::random(config), {.device = Device::cpu()});
  Session other = swapped.prepare(shape);
  EXPECT_GT(exact.error(swapped, other), 0.01);
  Tensor y(DType::f32, {1, 2, 3, 4});
  std::fill_n(y.values<float>().begin(), 24, 1.0f);
  EXPECT_TRUE(bench::all_finite(y));
  y.values<float>()[23] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(bench::all_finite(y));
}

}  // namespace
}  // namespace warpweave::test
