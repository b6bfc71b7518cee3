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

// How 20 blocks follow one another: every layer over its input, as in a model of many blocks; as sessions of
// one block, the row layer from one grid to another and the column layer in place; or in place without
// dependent launch.
enum class Chain { in_place, session, apart };

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
        auto* pristine = upload(x);
        const auto enqueue = [&](Chain chain) {
          for (int i = 0; i < 2 * blocks; ++i) {
            ResidentArguments a = arguments(p, s.B, s.H, s.W, i % 2 == 0);
            const bool to_other = chain == Chain::session && i % 2 == 0;
            auto* from = chain == Chain::session && i / 2 % 2 != (i % 2) ? d1 : d0;
            a.x = from, a.y = to_other ? (from == d0 ? d1 : d0) : from, a.weights = dw[i % 2],
            a.rotation = dr;
            launch(kernel, it->variant, a, stream, sms, chain != Chain::apart);
          }
        };
        enqueue(once ? Chain::apart : Chain::in_place);
        CHECK(cudaStreamSynchronize(stream));
        if (once) continue;
        double median[3], spread[3];
        for (const Chain chain : {Chain::in_place, Chain::session, Chain::apart}) {
          const int k = static_cast<int>(chain);
          cudaGraph_t graph;
          cudaGraphExec_t exec;
          CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
          enqueue(chain);
          CHECK(cudaStreamEndCapture(stream, &graph));
          CHECK(cudaGraphInstantiate(&exec, graph, 0));
          std::vector<float> times;
          for (int i = 0; i < 12; ++i) {
            CHECK(cudaMemcpyAsync(d0, pristine, count * 2, cudaMemcpyDeviceToDevice, stream));
            CHECK(cudaEventRecord(start, stream));
            CHECK(cudaGraphLaunch(exec, stream));
            CHECK(cudaEventRecord(stop, stream));
            CHECK(cudaEventSynchronize(stop));
            float ms;
            CHECK(cudaEventElapsedTime(&ms, start, stop));
            if (i >= 3) times.push_back(ms * 1000 / static_cast<float>(blocks));
          }
          std::sort(times.begin(), times.end());
          median[k] = times[times.size() / 2], spread[k] = times.back() - times.front();
          cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
        }
        std::vector<std::uint16_t> y(count);
        CHECK(cudaMemcpy(y.data(), d0, count * 2, cudaMemcpyDeviceToHost));
        std::size_t odd = 0;
        for (const auto v : y) odd += !std::isfinite(widen(p.element, v));
        std::printf("%-10s %-20s in place %7.2f us (spread %.2f), two grids %7.2f (%.2f), apart %7.2f%s\n",
                    s.name.c_str(), name.c_str(), median[0], spread[0], median[1], spread[1], median[2],
                    odd ? "  NOT FINITE" : "");
        std::fflush(stdout);
        for (void* d : {static_cast<void*>(pristine), static_cast<void*>(d0), static_cast<void*>(d1),
                        static_cast<void*>(dw[0]), static_cast<void*>(dw[1]), static_cast<void*>(dr)})
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
