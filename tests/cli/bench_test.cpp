// warpweave bench: its table, its JSON, and that it checks before it times.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "bench/correctness.h"
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

TEST(Bench, TheGpuSuiteNeedsAGpu) {
  const BlockFiles f;
  bool gpu = true;
  try {
    (void)Engine(Model::load(f.config, f.weights), {.device = Device::cuda()});
  } catch (const Error&) {
    gpu = false;
  }
  if (gpu) GTEST_SKIP() << "there is one";
  const Outcome o = warpweave({"bench", "--suite", "gpu"});
  EXPECT_EQ(o.status, 3);
  EXPECT_THAT(o.err, HasSubstr("warpweave: error: "));
}

TEST(Bench, TheErrorIsMeasuredAgainstTheReference) {
  const BlockFiles f;
  const Model model = Model::load(f.config, f.weights);
  const Engine half(model, {.device = Device::cpu(), .precision = Precision::fp16});
  const double error = bench::reference_error(half, {1, 40, 24});
  EXPECT_GT(error, bench::error_limit(Precision::fp32, 2));  // half precision is no single precision
  EXPECT_LT(error, 1e-2);
}

}  // namespace
}  // namespace warpweave::test
