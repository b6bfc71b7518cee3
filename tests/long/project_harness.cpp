// Checks and times the projections of the long family by themselves, in several plans each.
//
//   long_project_harness [FILTER]            random tokens against float64, then the median of 9 graphs of 20
//   launches long_project_harness --once FILTER       one launch of each, for profilers long_project_harness
//   --compile           registers and spills of all; needs no GPU
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "cuda/kernel.h"
#include "cuda/long/projection.h"
#include "warpweave/tensor.h"

namespace {

using namespace warpweave;
using namespace warpweave::cuda;
using namespace warpweave::cuda::long_sequences;

struct Case {
  std::string name;
  std::int64_t tokens;
  ProjectionShape shape;
  layout::ProjectPlan plan;
  Precision precision = Precision::bf16;
};

ProjectionShape qkv(int dim, int inner) {
  ProjectionShape s;
  s.k = dim, s.n = 3 * inner, s.qkv = true, s.norm = graph::NormKind::layer, s.biased = true;
  return s;
}

ProjectionShape output(int dim, int inner) {
  ProjectionShape s;
  s.k = inner, s.n = dim, s.biased = true, s.residual = true;
  return s;
}

std::vector<Case> cases() {
  std::vector<Case> list;
  const auto add = [&](const char* name, std::int64_t tokens, const ProjectionShape& s, int slice, int chunk,
                       int groups, Precision precision = Precision::bf16) {
    layout::ProjectPlan plan = plan_of(s);
    if (slice) plan.slice = slice, plan.chunk = chunk, plan.groups = groups;
    list.push_back({name, tokens, s, plan, precision});
  };
  const std::int64_t pair = 512 * 512, msa = 256 * 384;
  add("pair512 qkv", pair, qkv(128, 128), 0, 0, 0);
  add("pair512 qkv", pair, qkv(128, 128), 0, 0, 0, Precision::fp16);
  add("pair512 qkv", pair, qkv(128, 128), 384, 128, 3);
  add("pair512 qkv", pair, qkv(128, 128), 384, 64, 3);
  add("pair512 out", pair, output(128, 128), 0, 0, 0);
  add("msa qkv", msa, qkv(256, 256), 0, 0, 0);
  add("msa qkv", msa, qkv(256, 256), 0, 0, 0, Precision::fp16);
  add("msa qkv", msa, qkv(256, 256), 384, 96, 2);
  add("msa out", msa, output(256, 256), 0, 0, 0);
  return list;
}

std::string words(const Case& c) {
  char text[160];
  std::snprintf(text, sizeof text, "%-18s %-4s slice %3d chunk %3d groups %d", c.name.c_str(),
                std::string(to_string(c.precision)).c_str(), c.plan.slice, c.plan.chunk, c.plan.groups);
  return text;
}

std::vector<float> normal(std::size_t count, float size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> values(count);
  for (float& v : values) v = size * draw(random);
  return values;
}

// Random elements, on the device as many of them as wanted, over and over.
struct Repeated {
  static constexpr std::size_t kPeriod = 1000003;
  Tensor values;  // as float32 numbers of the type
  DeviceBuffer device;

  Repeated(std::size_t count, Precision precision, unsigned seed) : device(count * 2, "harness") {
    const Tensor narrow = Tensor::from({static_cast<std::int64_t>(kPeriod)}, normal(kPeriod, 1, seed))
                              .to(storage_type(precision));
    values = narrow.to(DType::f32);
    for (std::size_t i = 0; i < count; i += kPeriod)
      check(cudaMemcpy(device.data() + i * 2, narrow.data(), std::min(kPeriod, count - i) * 2,
                       cudaMemcpyHostToDevice),
            "harness");
  }
  std::vector<float> part(std::size_t first, std::size_t count) const {
    std::vector<float> list(count);
    for (std::size_t i = 0; i < count; ++i) list[i] = values.values<float>()[(first + i) % kPeriod];
    return list;
  }
};

// One token in float64, from operands as they are given.
std::vector<double> reference(const ProjectionShape& s, const std::vector<float>& x,
                              const std::vector<float>& residual, const std::vector<float>& weight,
                              const std::vector<float>& bias, double eps) {
  std::vector<double> v(x.begin(), x.end()), y(s.n);
  if (s.norm == graph::NormKind::layer) {
    double mean = 0, squares = 0;
    for (const double a : v) mean += a / s.k;
    for (double& a : v) a -= mean, squares += a * a / s.k;
    for (double& a : v) a /= std::sqrt(squares + eps);
  }
  for (int n = 0; n < s.n; ++n) {
    y[n] = static_cast<double>(bias[n]) + residual[n];
    for (int k = 0; k < s.k; ++k) y[n] += v[k] * weight[static_cast<std::size_t>(n) * s.k + k];
  }
  return y;
}

void measure(const Case& c, const GpuDevice& device, bool once) {
  const ProjectionShape& s = c.shape;
  const auto tokens = static_cast<std::size_t>(c.tokens);
  const Repeated x(tokens * s.k, c.precision, 1), residual(s.residual ? tokens * s.n : 1, c.precision, 2);
  const std::vector<float> weight =
      normal(static_cast<std::size_t>(s.n) * s.k, 1 / std::sqrt(static_cast<float>(s.k)), 3);
  const std::vector<float> bias = normal(s.n, 1, 4);
  std::vector<float> packed = weight;
  if (s.norm == graph::NormKind::layer) centre_rows(packed, s.k);
  const DeviceBuffer dw = upload_bytes(pack_projection(c.plan, packed, bias, c.precision), "harness"),
                     dy(tokens * s.n * 2, "harness");
  const TokenProjection kernel(s, c.plan, c.precision, device);
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  check(cudaMemsetAsync(dy.data(), 0xff, dy.bytes(), stream), "poison");
  kernels::ProjectParams p{};
  p.x = x.device.data(), p.y = dy.data(), p.residual = residual.device.data(), p.weights = dw.data();
  p.cells = {0, c.tokens, c.tokens}, p.tokens = static_cast<int>(c.tokens), p.eps = 1e-5f;
  p.position_divisor = 1, p.length = 1;
  kernel.enqueue(stream, p);
  check(cudaStreamSynchronize(stream), "run");
  if (once) return;

  double error = 0, size = 0;
  for (std::size_t i = 0; i < 97; ++i) {
    const std::size_t token = i == 0 ? tokens - 1 : i * 7919 % tokens;
    const auto exact = reference(s, x.part(token * s.k, s.k),
                                 s.residual ? residual.part(token * s.n, s.n) : std::vector<float>(s.n),
                                 weight, bias, p.eps);
    Tensor y(storage_type(c.precision), {s.n});
    check(cudaMemcpy(y.data(), dy.data() + token * s.n * 2, y.bytes(), cudaMemcpyDeviceToHost), "copy");
    const Tensor wide = y.to(DType::f32);
    for (int n = 0; n < s.n; ++n) {
      const double got = wide.values<float>()[n];
      error += (got - exact[n]) * (got - exact[n]), size += exact[n] * exact[n];
    }
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t run = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < 20; ++i) kernel.enqueue(stream, p);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&run, graph, 0), "graph");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 11; ++i) {
    float ms = 0;
    check(cudaEventRecord(begin, stream), "event");
    check(cudaGraphLaunch(run, stream), "graph");
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "graph");
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 2) times.push_back(ms * 1000 / 20);
  }
  std::sort(times.begin(), times.end());
  const double bytes = static_cast<double>(2 * tokens * (s.k + s.n * (s.residual ? 2 : 1)));
  const double us = times[4];
  std::printf("%s  error %.1e  %7.1f us (%.1f to %.1f)  %.2f TB/s  %.0f TFLOP/s\n", words(c).c_str(),
              std::sqrt(error / size), us, times.front(), times.back(), bytes / us / 1e6,
              2.0 * static_cast<double>(c.tokens) * s.k * s.n / us / 1e6);
  std::fflush(stdout);
  cudaGraphExecDestroy(run);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

void compile() {
  const Compiler compiler;
  for (const Case& c : cases()) {
    const auto kernel = compiler.compile(projection_kernel(c.shape, c.plan, c.precision), 90);
    std::smatch registers, spills;
    std::regex_search(kernel.log, registers, std::regex("Used (\\d+) registers"));
    const bool spilled = std::regex_search(kernel.log, spills, std::regex("([1-9]\\d*) bytes spill"));
    std::printf("%s  %s registers%s%s\n", words(c).c_str(), registers[1].str().c_str(),
                spilled ? (" SPILLS " + spills[1].str()).c_str() : "",
                kernel.log.find("C75") != std::string::npos ? " SERIALISED" : "");
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string first = argc > 1 ? argv[1] : "";
    if (first == "--compile") {
      compile();
      return 0;
    }
    const bool once = first == "--once";
    const std::string filter = once ? (argc > 2 ? argv[2] : "") : first;
    const GpuDevice device(0);
    for (const Case& c : cases())
      if (words(c).find(filter) != std::string::npos) measure(c, device, once);
  } catch (const std::exception& e) {
    std::printf("%s\n", e.what());
    return 1;
  }
}
