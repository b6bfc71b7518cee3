// What a user meets on a machine whose driver is old or whose NVIDIA libraries are missing, with libraries
// that stand in for NVIDIA's (tests/gpu/fakes): one line that helps, the right exit status, and `--device
// auto` going on.
#include <gmock/gmock.h>

#include <algorithm>

#include "cli/models.h"
#include "cli/process.h"

namespace warpweave::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CudaErrors : public ::testing::Test {
 protected:
  Outcome run(const std::string& device,
              const std::vector<std::pair<std::string, std::string>>& environment) const {
    std::vector<std::string> all = f.arguments("run");
    *(std::find(all.begin(), all.end(), "--device") + 1) = device;
    all.insert(all.end(), {"--output", f.output});
    RunSettings settings;
    settings.environment = {environment.begin(), environment.end()};
    return warpweave(all, settings);
  }
  static void expect_one_line(const Outcome& o, const std::vector<std::string>& words) {
    EXPECT_EQ(o.status, 3);
    EXPECT_THAT(o.err, StartsWith("warpweave: error: "));
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
    for (const std::string& w : words) EXPECT_THAT(o.err, HasSubstr(w));
  }
  BlockFiles f;
};

#ifdef WARPWEAVE_FAKES

const std::string kFakes = WARPWEAVE_FAKES;

std::vector<std::pair<std::string, std::string>> driver(const std::string& version) {
  return {{"LD_LIBRARY_PATH", kFakes + "/driver"}, {"WARPWEAVE_TEST_DRIVER", version}};
}

TEST_F(CudaErrors, AnOldDriver) {
  const Outcome o = run("cuda", driver("12020"));
  expect_one_line(o, {"cuda:0: the NVIDIA driver is too old: it serves CUDA 12.2, and ",
                      " is needed; update the driver"});
  EXPECT_FALSE(std::filesystem::exists(f.output));
  const Outcome automatic = run("auto", driver("12020"));
  EXPECT_EQ(automatic.status, 0);
  EXPECT_THAT(automatic.err, HasSubstr("running on the CPU: the NVIDIA driver is too old"));
  EXPECT_TRUE(std::filesystem::exists(f.output));
}

TEST_F(CudaErrors, NoDriver) {
  expect_one_line(run("cuda", driver("0")), {"cuda:0: no NVIDIA driver is loaded"});
  const Outcome automatic = run("auto", driver("0"));
  EXPECT_EQ(automatic.status, 0);
  EXPECT_THAT(automatic.err, HasSubstr("running on the CPU: no NVIDIA driver is loaded"));
}

TEST_F(CudaErrors, ADriverAndNoGpu) {
  expect_one_line(run("cuda", driver("13000")),
                  {"cuda:0: no NVIDIA GPU is present, or CUDA_VISIBLE_DEVICES hides it"});
  EXPECT_EQ(run("auto", driver("13000")).status, 0);
}

Outcome compile(const BlockFiles& f, const std::vector<std::pair<std::string, std::string>>& environment) {
  RunSettings settings;
  settings.environment = {environment.begin(), environment.end()};
  settings.environment.push_back({"WARPWEAVE_CACHE_DIR", f.folder / "cache"});
  return warpweave({"compile", "--config", f.config, "--shape", "1,4,5", "--arch", "sm_90a"}, settings);
}

TEST_F(CudaErrors, AnOldOrStrangeNvrtc) {
  expect_one_line(compile(f, {{"WARPWEAVE_CUDA_DIR", kFakes + "/old_nvrtc"}}),
                  {"NVRTC 11.8 does not know this GPU", "sm_90a", "a newer CUDA toolkit is needed"});
  expect_one_line(compile(f, {{"WARPWEAVE_CUDA_DIR", kFakes + "/empty_nvrtc"}}),
                  {"libnvrtc.so.13 has no function nvrtcVersion; a newer one is needed"});
}

TEST_F(CudaErrors, NoNvrtc) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "libraries are hidden by LD_PRELOAD, and a sanitizer must itself be loaded first";
#endif
  expect_one_line(
      compile(f, {{"LD_PRELOAD", kFakes + "/hide/hide.so"}, {"WARPWEAVE_TEST_HIDE", "libnvrtc"}}),
      {"libnvrtc.so.13", "; install the CUDA toolkit or run ./dev setup, or set WARPWEAVE_CUDA_DIR",
       "is not in the kernel cache"});
}

#else

TEST_F(CudaErrors, ABuildWithoutCuda) {
  expect_one_line(run("cuda", {}), {"this build has no CUDA support"});
  const Outcome automatic = run("auto", {});
  EXPECT_EQ(automatic.status, 0);
  EXPECT_THAT(automatic.err, HasSubstr("running on the CPU: this build has no CUDA support"));
}

#endif

}  // namespace
}  // namespace warpweave::test
