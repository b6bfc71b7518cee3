// How long it takes from a live CUDA context to a prepared session: without anything compiled, with a filled
// kernel cache in a new process, which opens cuBLASLt (540 MB, about 60 ms) and lets it set itself up, and
// for a second engine of the process. The times are printed.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "support.h"

namespace warpweave::gpu_test {
namespace {

constexpr const char* kChild = "WARPWEAVE_TEST_PREPARE";

struct Work {
  const char* name;
  const char* config;
  Precision precision;
  Shape shape;
  double cold, warm, again;  // most seconds
};
void PrintTo(const Work& work, std::ostream* out) { *out << work.name; }

constexpr Work kWork[] = {
    {"seed_block_bf16", "axial_block.yaml", Precision::bf16, {4, 32, 32}, 3, 0.1, 0.1},
    {"seed_block_fp32", "axial_block.yaml", Precision::fp32, {4, 32, 32}, 3, 0.1, 0.1},
    {"denoiser_bf16", "denoiser.yaml", Precision::bf16, {1, 512, 512}, 10, 0.1, 0.1},
};

struct Times {
  double first = -1, again = -1;  // seconds; a second engine in the same process
};

Times prepare_here(const Work& work) {
  const Model model = Model::random(std::string(WARPWEAVE_SOURCE_DIR) + "/configs/" + work.config);
  REQUIRE_CUDA(cudaFree(nullptr));
  const auto seconds = [&] {
    const auto begin = std::chrono::steady_clock::now();
    (void)engine(model, "auto", work.precision).prepare(work.shape);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  Times times;
  times.first = seconds();
  times.again = seconds();
  return times;
}

class GpuPrepare : public testing::TestWithParam<Work> {};

// The same test in a new process, with this kernel cache.
Times prepare_in_a_process(const std::string& cache) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = std::string(kChild) + "=1 WARPWEAVE_CACHE_DIR=" + cache + " '" + program +
                              "' --gtest_filter='" + test->test_suite_name() + "." + test->name() + "'";
  FILE* pipe = popen(command.c_str(), "r");
  Times times;
  if (!pipe) return times;
  char line[512];
  while (std::fgets(line, sizeof line, pipe))
    std::sscanf(line, "prepared in %lf, again in %lf", &times.first, &times.again);
  pclose(pipe);
  return times;
}

TEST_P(GpuPrepare, IsQuick) {
  const Work& work = GetParam();
  if (std::getenv(kChild)) {
    const Times times = prepare_here(work);
    std::printf("prepared in %f, again in %f\n", times.first, times.again);
    return;
  }
  char cache[] = "/tmp/warpweave-prepare-XXXXXX";
  ASSERT_TRUE(mkdtemp(cache));
  const Times cold = prepare_in_a_process(cache), warm = prepare_in_a_process(cache);
  std::error_code ignored;
  std::filesystem::remove_all(cache, ignored);
  std::printf(
      "%s: %.0f ms with an empty kernel cache, %.0f ms with a filled one, %.0f ms for a second engine\n",
      work.name, cold.first * 1e3, warm.first * 1e3, warm.again * 1e3);
  ASSERT_GT(cold.first, 0);
  ASSERT_GT(warm.first, 0);
  EXPECT_LT(cold.first, work.cold);
  EXPECT_LT(warm.first, work.warm);
  EXPECT_LT(warm.again, work.again);
}

INSTANTIATE_TEST_SUITE_P(All, GpuPrepare, testing::ValuesIn(kWork),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace warpweave::gpu_test
