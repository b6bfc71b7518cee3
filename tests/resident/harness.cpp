// Compiles, checks and times the resident kernels by themselves.
//
//   resident_harness compile DIR [sm_90a]   every case, by NVRTC; needs no GPU; prints registers, spills
//   resident_harness widest DIR [sm_90a]    the same for the layers that need most registers
//   resident_harness check DIR [PROBLEMS]   random problems of every case against float64, outputs poisoned
//   resident_harness time DIR [FILTER]      docs/performance.md: graph of 20 blocks, median of 9
//   resident_harness once DIR FILTER        one launch of each case of the table, for profilers
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "harness.h"

namespace warpweave::cuda::resident {
namespace {

int time_all(const std::string& dir, const std::string& filter, bool once) {
  int sms = 0;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  std::mt19937 r(1);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaEvent_t start, stop;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  for (const Shape& s : shapes())
    for (const std::string& name : s.cases) {
      if ((s.name + " " + name).find(filter) == std::string::npos) continue;
      try {
        const auto cases = all_cases();
        const auto it =
            std::find_if(cases.begin(), cases.end(), [&](const Case& c) { return c.name == name; });
        if (it == cases.end()) throw std::runtime_error("no case " + name);
        const Problem& p = it->problem;
        const auto kernel = load(dir, *it);
        const LayerWeights w[2] = {random_weights(p, r), random_weights(p, r)};
        std::byte* dw[2] = {upload(pack(p, w[0].tensors())), upload(pack(p, w[1].tensors()))};
        const std::size_t count = static_cast<std::size_t>(s.B) * s.H * s.W * p.dim;
        std::vector<std::uint16_t> x(count);
        std::normal_distribution<float> n;
        std::vector<std::uint16_t> pool(1 << 16);
        for (auto& v : pool) v = narrow(p.element, n(r));
        for (auto& v : x) v = pool[r() & 0xffff];
        auto* d0 = upload(x);
        auto* d1 = upload(std::vector<std::uint16_t>(count, 0xffff));
        float* dr = p.rope_dims ? upload(rotation(p, std::max(s.H, s.W))) : nullptr;
        const int blocks = once ? 1 : 20;
        const auto enqueue = [&](bool chained) {
          for (int i = 0; i < 2 * blocks; ++i) {
            ResidentArguments a = arguments(p, s.B, s.H, s.W, i % 2 == 0);
            a.x = i % 2 ? d1 : d0, a.y = i % 2 ? d0 : d1, a.weights = dw[i % 2], a.rotation = dr;
            launch(kernel, it->variant, a, stream, sms, chained);
          }
        };
        enqueue(!once);
        CHECK(cudaStreamSynchronize(stream));
        if (once) continue;
        double median[2], spread[2];
        for (int chained = 0; chained < 2; ++chained) {
          cudaGraph_t graph;
          cudaGraphExec_t exec;
          CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
          enqueue(chained);
          CHECK(cudaStreamEndCapture(stream, &graph));
          CHECK(cudaGraphInstantiate(&exec, graph, 0));
          std::vector<float> times;
          for (int i = 0; i < 12; ++i) {
            CHECK(cudaEventRecord(start, stream));
            CHECK(cudaGraphLaunch(exec, stream));
            CHECK(cudaEventRecord(stop, stream));
            CHECK(cudaEventSynchronize(stop));
            float ms;
            CHECK(cudaEventElapsedTime(&ms, start, stop));
            if (i >= 3) times.push_back(ms * 1000 / static_cast<float>(blocks));
          }
          std::sort(times.begin(), times.end());
          median[chained] = times[times.size() / 2], spread[chained] = times.back() - times.front();
          cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
        }
        std::vector<std::uint16_t> y(count);
        CHECK(cudaMemcpy(y.data(), d0, count * 2, cudaMemcpyDeviceToHost));
        std::size_t odd = 0;
        for (const auto v : y) odd += !std::isfinite(widen(p.element, v));
        std::printf("%-10s %-24s %8.2f us (spread %.2f), without dependent launch %8.2f%s\n", s.name.c_str(),
                    name.c_str(), median[1], spread[1], median[0], odd ? "  NOT FINITE" : "");
        std::fflush(stdout);
        for (void* d : {static_cast<void*>(d0), static_cast<void*>(d1), static_cast<void*>(dw[0]),
                        static_cast<void*>(dw[1]), static_cast<void*>(dr)})
          cudaFree(d);
      } catch (const std::exception& e) {
        std::printf("%-10s %-24s %s\n", s.name.c_str(), name.c_str(), e.what());
        cudaGetLastError();
      }
    }
  return 0;
}

}  // namespace
}  // namespace warpweave::cuda::resident

int main(int argc, char** argv) {
  using namespace warpweave::cuda::resident;
  try {
    const std::string verb = argc > 1 ? argv[1] : "", dir = argc > 2 ? argv[2] : ".",
                      third = argc > 3 ? argv[3] : "";
    if (verb == "compile")
      return compile_cases(all_cases(), dir, third.empty() ? "sm_90a" : third, argc > 4 ? argv[4] : "");
    if (verb == "widest") {
      const std::string arch = third.empty() ? "sm_90a" : third;
      const int capability = std::atoi(arch.c_str() + 3);
      return compile_cases(widest_cases(capability), dir, arch, argc > 4 ? argv[4] : "");
    }
    if (verb == "check")
      return check_cases(dir, third.empty() ? 12 : std::atoi(argv[3]), argc > 4 ? argv[4] : "");
    if (verb == "time") return time_all(dir, third, false);
    if (verb == "once") return time_all(dir, third, true);
    std::fprintf(stderr, "usage: resident_harness compile|check|time|once DIR [..]\n");
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "resident_harness: %s\n", e.what());
    return 1;
  }
}
