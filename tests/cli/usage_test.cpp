// Help, version, and command lines that cannot be understood.
#include <gmock/gmock.h>

#include <algorithm>

#include "cli/process.h"
#include "warpweave/warpweave.h"

namespace warpweave::test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const std::vector<std::string> kCommands = {"run", "inspect", "compare", "bench", "compile", "denoise"};

void expect_usage_error(const std::vector<std::string>& arguments, const std::string& words) {
  SCOPED_TRACE(::testing::PrintToString(arguments));
  const Outcome o = warpweave(arguments);
  EXPECT_EQ(o.status, 2);
  EXPECT_THAT(o.out, IsEmpty());
  EXPECT_THAT(o.err, StartsWith("warpweave: error: "));
  EXPECT_THAT(o.err, EndsWith("\n"));
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  EXPECT_THAT(o.err, HasSubstr(words));
}

TEST(Usage, EveryCommandHasHelp) {
  const Outcome all = warpweave({"--help"});
  EXPECT_EQ(all.status, 0);
  for (const std::string& command : kCommands) {
    SCOPED_TRACE(command);
    EXPECT_THAT(all.out, HasSubstr("  " + command + " "));
    const Outcome o = warpweave({command, "--help"});
    EXPECT_EQ(o.status, 0);
    EXPECT_THAT(o.err, IsEmpty());
    for (const char* option : {"--device", "--precision", "--plan", "--strict", "--threads", "--workspace",
                               "--output-dtype", "--allow-unused", "--quiet", "--version", "--help"})
      EXPECT_THAT(o.out, HasSubstr(option));
  }
  EXPECT_THAT(warpweave({"run", "--help"}).out, HasSubstr("--output-dtype"));
}

TEST(Usage, EveryCommandTellsTheVersion) {
  const std::string expected = std::string("warpweave ") + version() + "\n";
  EXPECT_EQ(warpweave({"--version"}).out, expected);
  for (const std::string& command : kCommands) {
    const Outcome o = warpweave({command, "--version"});
    EXPECT_EQ(o.status, 0) << command;
    EXPECT_EQ(o.out, expected) << command;
  }
}

TEST(Usage, Errors) {
  expect_usage_error({}, "a command is needed: run, inspect, compare, bench, compile, denoise");
  expect_usage_error({"rnu"}, "unknown command 'rnu', did you mean 'run'?");
  expect_usage_error({"--precision", "fp32"}, "unknown option '--precision'");
  expect_usage_error({"run"}, "--config is required");
  expect_usage_error({"run", "--config", "c", "--input", "x", "--output", "y.npy"}, "--weights is required");
  expect_usage_error({"compare", "--config", "c", "--weights", "w", "--input", "x"}, "--expect is required");
  expect_usage_error({"run", "--precison", "fp32"},
                     "unknown option '--precison', did you mean '--precision'?");
  expect_usage_error({"run", "stray", "--config", "c", "--weights", "w", "--input", "x", "--output", "y.npy"},
                     "unexpected argument 'stray'");
  expect_usage_error({"run", "--threads", "many"}, "--threads: 'many' is not a number");
  expect_usage_error({"compile", "--config", "c.yaml", "--shape", "1,2,3"}, "--arch is required");
  expect_usage_error({"denoise", "in.png"}, "OUT.png is required");
}

TEST(Usage, BadValuesOfOptions) {
  const std::vector<std::string> run = {"run",     "--config", "c",        "--weights", "w",
                                        "--input", "x",        "--output", "y.npy"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = run;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  expect_usage_error(with({"--device", "gpu"}),
                     "--device: unknown device 'gpu', expected auto, cpu, cuda or cuda:N");
  expect_usage_error(with({"--precision", "int8"}), "--precision: unknown precision 'int8'");
  for (const char* threads : {"-1", "010", "0x2", "+2", "2.0", "4097", "18446744073709551616"})
    expect_usage_error(with({"--threads", threads}),
                       std::string("--threads: '") + threads + "' is not a number from 0 to 4096");
  expect_usage_error(with({"--threads", ""}), "--threads: '' is not a number");
  expect_usage_error(with({"--output-dtype", ""}), "--output-dtype: the value is empty");
  expect_usage_error(with({"--output-dtype", "int8"}), "--output-dtype: unknown element type 'int8'");
  expect_usage_error(with({"--output-dtype", "uint8"}), "--output-dtype: 'uint8' is not a floating type");
  expect_usage_error(with({"--output-dtype", "float64"}), "needs --precision fp64");
  expect_usage_error(with({"--workspace", "lots"}), "--workspace: 'lots' is not a size");
  expect_usage_error(with({"--workspace", "5X"}), "--workspace: '5X' has an unknown unit");
  expect_usage_error(with({"--workspace", "-5M"}), "--workspace: '-5M' is not a size of at least one byte");
  expect_usage_error(with({"--workspace", "0"}), "at least one byte");
  expect_usage_error(with({"--workspace", "9999999T"}), "more than any memory holds");
  for (const char* shape :
       {"4,32", "4,32,32,64", "0,1,1", "-1,2,3", "1,2,x", "", "1,2,3,", "99999999999999999999,1,1"})
    expect_usage_error({"inspect", "--config", "c.yaml", "--shape", std::string(shape) + (*shape ? "" : " ")},
                       "is not B,H,W");
  expect_usage_error({"compare", "--config", "c", "--weights", "w", "--input", "x", "--expect", "e.npy",
                      "--tolerance", "-1"},
                     "--tolerance: -1 is not a number of at least 0");
  expect_usage_error({"compare", "--config", "c", "--weights", "w", "--input", "x", "--expect", "e.npy",
                      "--tolerance", "1e400"},
                     "--tolerance: '1e400' is not a number");
  expect_usage_error({"denoise", "i.png", "o.png", "--seed", "-1"}, "--seed: '-1' is not a number from 0");
  expect_usage_error({"denoise", "i.png", "o.png", "--side-by-side", "./o.png"},
                     "--side-by-side: o.png is the output already");
  expect_usage_error({"bench"}, "give --config C.yaml --shape B,H,W, or --suite cpu or gpu");
  expect_usage_error({"bench", "--config", "c.yaml"}, "--shape: B,H,W is needed");
  expect_usage_error({"bench", "--suite", "tpu"}, "--suite: 'tpu' is not cpu or gpu");
  expect_usage_error({"bench", "--suite", "cpu", "--only", "nothing"},
                     "--only: the suite has no case 'nothing'");
  expect_usage_error({"bench", "--suite", "cpu", "--shape", "1,2,3"}, "belong to --config");
  expect_usage_error({"bench", "--suite", "cpu", "--repeat", "0"}, "--repeat: at least 1");
  expect_usage_error({"denoise", "i.png", "o.png", "--sigma", "-3"}, "--sigma: -3 is not a noise level");
  expect_usage_error({"denoise", "i.png", "o.png", "--add-noise", "999"},
                     "--add-noise: 999 is not a noise level");
  expect_usage_error({"denoise", "i.png", "o.png", "--config", "c.yaml"},
                     "--config and --weights: give both");
}

}  // namespace
}  // namespace warpweave::test
