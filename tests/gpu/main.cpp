// warpweave_gpu_tests [GoogleTest's options]      needs a GPU; without one it says so and exits with 77
// warpweave_gpu_tests --compile sm_90a [PLAN [PRECISION]]
//                         fills the kernel cache with what the tests need, of all plans or one; needs no GPU
// warpweave_gpu_tests --hash                      of the device code that this was built from (hash.sh)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "accuracy/fixture.h"
#include "code_hash.h"
#include "cuda/backend.h"
#include "cuda/compile_for.h"
#include "model_data.h"
#include "support.h"

namespace warpweave::gpu_test {
namespace {

struct Work {
  Model model;
  Shape shape;
};

struct Wanted {
  std::string architecture;
  std::vector<std::string> plans = gpu_test::plans();
  std::vector<Precision> precisions{std::begin(kPrecisions), std::end(kPrecisions)};
};

void compile(const Work& work, const Wanted& wanted) {
  for (const std::string& plan : wanted.plans) {
    for (const Precision precision : wanted.precisions) {
      EngineOptions options;
      options.plan = plan;
      options.precision = precision;
      cuda::compile_for(work.model.data()->graph, work.shape, wanted.architecture, options);
    }
  }
}

void compile_all(const Wanted& wanted) {
  std::vector<Work> list;
  for (const auto& c : accuracy::load_cases()) list.push_back({accuracy::load_model(c), c.shape});
  for (int seed = 0; seed < kRandomProblems; ++seed) {
    const auto p = properties::random_problem(static_cast<std::uint64_t>(seed));
    list.push_back({properties::make_model(p.attention.dim, {p.attention.yaml()}), p.shape});
  }
  for (const std::int64_t dim : kOddDims)
    for (const std::int64_t length : kOddLengths) list.push_back({odd_model(dim), {1, 3, length}});
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < std::thread::hardware_concurrency(); ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < list.size(); i = next++) compile(list[i], wanted);
    });
  }
}

}  // namespace
}  // namespace warpweave::gpu_test

int main(int argc, char** argv) {
  using namespace warpweave;
  testing::InitGoogleMock(&argc, argv);
  if (argc == 2 && std::string(argv[1]) == "--hash") return std::puts(kCodeHash), 0;
  if (argc >= 3 && std::string(argv[1]) == "--compile") {
    gpu_test::Wanted wanted{.architecture = argv[2]};
    if (argc > 3) wanted.plans = {argv[3]};
    if (argc > 4) wanted.precisions = {parse_precision(argv[4])};
    gpu_test::compile_all(wanted);
    return 0;
  }
  if (const std::string reason = cuda::unusable(0); !reason.empty()) {
    std::printf("GPU tests skipped: %s\n", reason.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
