// warpweave_gpu_bench [--precision P] [--plan NAME] [--workspace BYTES] [--once] [shape...]
//
// Time per block (a row layer and a column layer) on the shapes of docs/performance.md: 20 blocks chained in
// one replayed CUDA graph (5 where a block is over 50 GFLOP), median of 9 replays with the spread; the output
// is poisoned before and checked for finite numbers after.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "support.h"

namespace {

using namespace warpweave;
using namespace warpweave::gpu_test;

struct Bench {
  const char* name;
  Shape shape;
  std::int64_t dim, heads;
};
constexpr Bench kShapes[] = {{"seed", {4, 32, 32}, 64, 4},       {"seed_b256", {256, 32, 32}, 64, 4},
                             {"image64", {8, 64, 64}, 256, 8},   {"pair256", {1, 256, 256}, 128, 4},
                             {"pair512", {1, 512, 512}, 128, 4}, {"pair1024", {1, 1024, 1024}, 128, 4},
                             {"msa", {1, 256, 384}, 256, 8},     {"msa768", {1, 128, 512}, 768, 12},
                             {"audio", {1, 800, 60}, 384, 8},    {"video", {2, 16, 1568}, 768, 12}};

void measure(const Bench& b, Precision precision, const std::string& plan, std::int64_t limit, bool once) {
  const Model model = properties::make_block(b.dim, b.heads);
  const Engine e = engine(model, plan, precision, limit);
  Session session = e.prepare(b.shape);
  double flops = 0;
  for (const auto& layer : session.plan()) flops += layer.flops;
  const int chain = flops > 50e9 ? 5 : 20;
  const DType type = storage_type(precision);
  const Tensor x = properties::random_grid(b.shape, b.dim, 3).to(type);
  DeviceMemory one(x), two(x.bytes());
  REQUIRE_CUDA(cudaMemset(two.data(), 0xff, x.bytes()));
  const Stream stream;
  if (once) {
    session.run({one.data(), type, session.input_shape()}, {two.data(), type, session.output_shape()},
                {.stream = stream});
    return stream.wait();
  }
  const auto blocks = [&] {
    for (int i = 0; i < chain; ++i) {
      std::byte* from = i % 2 ? two.data() : one.data();
      std::byte* to = i % 2 ? one.data() : two.data();
      session.run({from, type, session.input_shape()}, {to, type, session.output_shape()},
                  {.stream = stream});
    }
  };
  cudaGraphExec_t graph = capture(stream, blocks);
  cudaEvent_t begin, end;
  REQUIRE_CUDA(cudaEventCreate(&begin));
  REQUIRE_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 11; ++i) {
    REQUIRE_CUDA(cudaMemcpyAsync(one.data(), x.data(), x.bytes(), cudaMemcpyHostToDevice, stream));
    REQUIRE_CUDA(cudaEventRecord(begin, stream));
    REQUIRE_CUDA(cudaGraphLaunch(graph, stream));
    REQUIRE_CUDA(cudaEventRecord(end, stream));
    stream.wait();
    float ms = 0;
    REQUIRE_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms * 1000 / static_cast<float>(chain));
  }
  cudaGraphExecDestroy(graph);
  std::sort(times.begin(), times.end());
  Tensor y(type, x.shape());
  (chain % 2 ? two : one).copy_to(y);
  const Tensor wide = y.to(DType::f32);
  const auto values = wide.values<float>();
  const bool finite = std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  std::printf("%-10s %-5s %-15s %9.1f us  (%.1f to %.1f)  %6.1f TFLOP/s  workspace %7.1f MiB%s\n", b.name,
              std::string(to_string(precision)).c_str(), plan.c_str(), times[times.size() / 2], times.front(),
              times.back(), flops / times[times.size() / 2] / 1e6,
              static_cast<double>(session.workspace_bytes()) / 1048576, finite ? "" : "  NOT FINITE");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Precision precision = Precision::bf16;
    std::string plan = "composed";
    std::int64_t limit = 0;
    bool once = false;
    std::set<std::string> wanted;
    for (int i = 1; i < argc; ++i) {
      const std::string option = argv[i];
      if (option == "--precision")
        precision = parse_precision(argv[++i]);
      else if (option == "--plan")
        plan = argv[++i];
      else if (option == "--once")
        once = true;
      else if (option == "--workspace")
        limit = std::atoll(argv[++i]);
      else
        wanted.insert(option);
    }
    for (const Bench& b : kShapes) {
      if (wanted.empty() || wanted.count(b.name)) measure(b, precision, plan, limit, once);
    }
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
