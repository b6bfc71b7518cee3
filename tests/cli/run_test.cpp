// warpweave run and compare: what they compute, write and never lose.
#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "cli/models.h"
#include "cli/process.h"

namespace warpweave::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Tensor from_library(const BlockFiles& f) {
  const Engine engine(Model::load(f.config, f.weights), {.device = Device::cpu()});
  return engine.run(load_tensor(f.input));
}

std::vector<float> numbers(const Tensor& t) {
  const auto v = t.values<float>();
  return {v.begin(), v.end()};
}

TEST(Run, GivesWhatTheLibraryGives) {
  const BlockFiles f;
  const Outcome o = warpweave(f.arguments("run") + std::vector<std::string>{"--output", f.output});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.out + o.err, IsEmpty());
  const Tensor y = load_tensor(f.output);
  EXPECT_EQ(y.dtype(), DType::f32);
  EXPECT_EQ(numbers(y), numbers(from_library(f)));
}

TEST(Run, WritesTheTypeAskedFor) {
  const BlockFiles f;
  const Tensor exact = from_library(f);
  for (const auto& [name, ending, type] :
       {std::tuple{"float16", "npy", DType::f16}, std::tuple{"bfloat16", "safetensors", DType::bf16},
        std::tuple{"float32", "safetensors", DType::f32}}) {
    const std::string path = f.folder / (std::string("out.") + ending);
    const Outcome o =
        warpweave(f.arguments("run") + std::vector<std::string>{"--output", path, "--output-dtype", name});
    ASSERT_EQ(o.status, 0) << o.err;
    const Tensor y = load_tensor(path);
    EXPECT_EQ(y.dtype(), type);
    EXPECT_EQ(numbers(y.to(DType::f32)), numbers(exact.to(type).to(DType::f32)));
  }
  const Outcome o =
      warpweave(f.arguments("run") + std::vector<std::string>{"--output", f.output, "--output-dtype",
                                                              "float64", "--precision", "fp64"});
  ASSERT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(load_tensor(f.output).dtype(), DType::f64);
}

TEST(Run, TakesEveryInputType) {
  const BlockFiles f;
  const Tensor x = load_tensor(f.input).to(DType::f16);  // exact in every wider type
  std::vector<float> expected;
  for (const DType type : {DType::f16, DType::f32, DType::f64}) {
    save_tensor(f.input, x.to(type));
    ASSERT_EQ(warpweave(f.arguments("run") + std::vector<std::string>{"--output", f.output}).status, 0);
    const std::vector<float> y = numbers(load_tensor(f.output));
    if (expected.empty()) expected = y;
    EXPECT_EQ(y, expected) << to_string(type);
  }
}

TEST(Run, AMaskedCellReachesNobody) {
  const BlockFiles f;
  Tensor x = load_tensor(f.input);
  Tensor mask(DType::u8, {2, 3, 5});
  for (std::uint8_t& m : mask.values<std::uint8_t>()) m = 1;
  mask.values<std::uint8_t>()[7] = 0;  // sample 0, row 1, column 2
  save_tensor(f.folder / "m.npy", mask);
  const std::vector<std::string> masked =
      f.arguments("run") + std::vector<std::string>{"--mask", f.folder / "m.npy", "--output", f.output};
  ASSERT_EQ(warpweave(masked).status, 0);
  const std::vector<float> before = numbers(load_tensor(f.output));
  EXPECT_NE(before, numbers(from_library(f)));
  for (int c = 0; c < 8; ++c)
    x.values<float>()[static_cast<std::size_t>(7 * 8 + c)] = std::numeric_limits<float>::quiet_NaN();
  save_tensor(f.input, x);
  ASSERT_EQ(warpweave(masked).status, 0);
  const std::vector<float> after = numbers(load_tensor(f.output));
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (i / 8 != 7) {
      EXPECT_EQ(before[i], after[i]) << i;
    }
  }
}

TEST(Run, OutputMayBeTheInput) {
  const BlockFiles f;
  const std::vector<float> expected = numbers(from_library(f));
  const Outcome o = warpweave(f.arguments("run") + std::vector<std::string>{"--output", f.input});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(numbers(load_tensor(f.input)), expected);
  EXPECT_EQ(f.folder.files(), (std::vector<std::string>{"block.safetensors", "block.yaml", "x.npy"}));
}

TEST(Run, KilledAtAnyMomentLeavesTheOldFileOrTheNewOne) {
  const BlockFiles f;
  const std::string config = f.folder / "norm.yaml", weights = f.folder / "norm.safetensors",
                    grid = f.folder / "g.npy";
  write_file(config, "name: n\ninput: {dim: 64}\nlayers:\n  - norm: {tensors: \"{name}\"}\n");
  std::map<std::string, Tensor> tensors;
  tensors["norm.weight"] = filled({64}, 1);
  tensors["norm.bias"] = filled({64}, 0);
  save_safetensors(weights, tensors);
  const Tensor before = spread({1, 128, 128, 64}, 3);
  save_tensor(grid, before);
  const std::vector<std::string> arguments = {"run", "--config", config, "--weights", weights, "--input",
                                              grid,  "--device", "cpu",  "--output",  grid};
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(warpweave(arguments).status, 0);
  const auto whole =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
  const std::vector<float> after = numbers(load_tensor(grid));
  constexpr int kMoments = 40;
  int killed = 0;
  for (int i = 0; i < kMoments; ++i) {
    save_tensor(grid, before);
    const Outcome o = warpweave(arguments, {.kill_after_us = static_cast<int>(whole.count() * i / kMoments)});
    killed += o.status == 128 + 9;
    const std::vector<float> now = numbers(load_tensor(grid));
    EXPECT_TRUE(now == numbers(before) || now == after);
  }
  EXPECT_GT(killed, 0);
  save_tensor(grid, before);
  EXPECT_EQ(warpweave(arguments).status, 0);  // and clears what the killed ones left
  for (const std::string& name : f.folder.files()) EXPECT_THAT(name, Not(HasSubstr("tmp")));
}

TEST(Run, ShowsProgressOnATerminalAlone) {
  const BlockFiles f;
  const std::string config = f.folder / "slow.yaml";
  write_file(config,
             "name: slow\ninput: {dim: 8}\nlayers:\n  - repeat: {count: 24, layers: [axial_attention: {axis: "
             "row, heads: 1, "
             "tensors: \"row_{name}\"}]}\n");
  save_tensor(f.input, spread({1, 8, 1024, 8}));
  std::vector<std::string> arguments = f.arguments("run");
  arguments[2] = config;
  arguments =
      arguments + std::vector<std::string>{"--allow-unused", "--output", f.output,    "--plan", "reference",
                                           "--precision",    "fp64",     "--threads", "1"};
  const Outcome pipe = warpweave(arguments);
  EXPECT_EQ(pipe.status, 0) << pipe.err;
  EXPECT_THAT(pipe.err, IsEmpty());
  if (::access("/dev/pts/ptmx", F_OK) != 0)
    GTEST_SKIP() << "no pseudo-terminals here: /dev/pts is not mounted";
  const Outcome terminal = warpweave(arguments, {.terminal = true});
  EXPECT_THAT(terminal.err, HasSubstr("of 24"));
}

TEST(Run, AutoSaysWhichDevice) {
  const BlockFiles f;
  std::vector<std::string> arguments = f.arguments("run") + std::vector<std::string>{"--output", f.output};
  arguments[8] = "auto";
  EXPECT_THAT(warpweave(arguments).err, HasSubstr("warpweave: running on "));
  EXPECT_THAT(warpweave(arguments + std::vector<std::string>{"--quiet"}).err, IsEmpty());
  arguments[8] = "cpu";
  EXPECT_THAT(warpweave(arguments + std::vector<std::string>{"--precision", "tf32"}).err, HasSubstr("tf32"));
}

TEST(Compare, ToleranceDecides) {
  const BlockFiles f;
  const std::string expect = f.folder / "e.npy";
  Tensor e = from_library(f);
  const std::vector<std::string> arguments =
      f.arguments("compare") + std::vector<std::string>{"--expect", expect};
  save_tensor(expect, e);
  const Outcome same = warpweave(arguments + std::vector<std::string>{"--tolerance", "0"});
  EXPECT_EQ(same.status, 0) << same.err;
  EXPECT_THAT(same.out, HasSubstr("relative error 0.000e+00, max abs 0.000e+00"));

  double norm = 0;
  for (const float v : e.values<float>()) norm += static_cast<double>(v) * v;
  const double step = 1e-3 * std::sqrt(norm);  // an error of one part in a thousand, in one element
  e.values<float>()[17] += static_cast<float>(step);
  save_tensor(expect, e);
  const Outcome past = warpweave(arguments);
  EXPECT_EQ(past.status, 1);
  EXPECT_THAT(past.out, HasSubstr("PAST"));
  EXPECT_EQ(warpweave(arguments + std::vector<std::string>{"--tolerance", "9e-4"}).status, 1);
  EXPECT_EQ(warpweave(arguments + std::vector<std::string>{"--tolerance", "1.1e-3"}).status, 0);
}

TEST(Compare, NaNIsPastEveryTolerance) {
  const BlockFiles f;
  const std::string expect = f.folder / "e.npy";
  for (const std::size_t at : {std::size_t{0}, std::size_t{239}}) {
    Tensor e = from_library(f);
    e.values<float>()[at] = std::numeric_limits<float>::quiet_NaN();
    save_tensor(expect, e);
    EXPECT_EQ(warpweave(f.arguments("compare") +
                        std::vector<std::string>{"--expect", expect, "--tolerance", "1e30"})
                  .status,
              1);
  }
}

}  // namespace
}  // namespace warpweave::test
