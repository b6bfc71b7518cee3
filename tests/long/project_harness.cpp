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
  const std::int64_t pair = 512 * 512, msa = 256 * 384, audio = 48000;
  add("pair512 qkv", pair, qkv(128, 128), 0, 0, 0);
  add("pair512 qkv", pair, qkv(128, 128), 0, 0, 0, Precision::fp16);
  add("pair512 qkv", pair, qkv(128, 128), 384, 64, 4);
  add("pair512 qkv", pair, qkv(128, 128), 384, 96, 3);
  add("pair512 qkv", pair, qkv(128, 128), 384, 192, 2);
  add("pair512 out", pair, output(128, 128), 0, 0, 0);
  add("pair512 out", pair, output(128, 128), 128, 64, 3);
  add("pair512 out", pair, output(128, 128), 128, 32, 4);
  add("msa qkv", msa, qkv(256, 256), 0, 0, 0);
  add("msa qkv", msa, qkv(256, 256), 256, 128, 2);
  add("msa qkv", msa, qkv(256, 256), 384, 64, 2);
  add("msa out", msa, output(256, 256), 0, 0, 0);
  add("msa out", msa, output(256, 256), 256, 32, 2);
  (void)audio;
  return list;
}

std::string words(const Case& c) {
  char text[160];
  std::snprintf(text, sizeof text, "%-12s %-4s slice %3d chunk %3d groups %d", c.name.c_str(),
                std::string(to_string(c.precision)).c_str(), c.plan.slice, c.plan.chunk, c.plan.groups);
  return text;
}

std::vector<float> normal(std::size_t count, float size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> pool(1 << 16), values(count);
  for (float& v : pool) v = size * draw(random);
  for (float& v : values) v = pool[random() & 0xffff];
  return values;
}

Tensor narrow(const std::vector<float>& values, Precision precision) {
  return Tensor::from({static_cast<std::int64_t>(values.size())}, values).to(storage_type(precision));
}

DeviceBuffer on_device(const Tensor& t) {
  return upload_bytes({static_cast<const std::byte*>(t.data()), t.bytes()}, "harness");
}

// One token in float64, from operands as they are given.
std::vector<double> reference(const ProjectionShape& s, const float* x, const float* residual,
                              const std::vector<float>& weight, const std::vector<float>& bias, double eps) {
  std::vector<double> v(x, x + s.k), y(s.n);
  if (s.norm == graph::NormKind::layer) {
    double mean = 0, squares = 0;
    for (const double a : v) mean += a / s.k;
    for (double& a : v) a -= mean, squares += a * a / s.k;
    for (double& a : v) a /= std::sqrt(squares + eps);
  }
  for (int n = 0; n < s.n; ++n) {
    y[n] = bias[n] + (residual ? residual[n] : 0.0);
    for (int k = 0; k < s.k; ++k) y[n] += v[k] * weight[static_cast<std::size_t>(n) * s.k + k];
  }
  return y;
}

void measure(const Case& c, const GpuDevice& device, bool once) {
  const ProjectionShape& s = c.shape;
  const auto tokens = static_cast<std::size_t>(c.tokens);
  const Tensor x = narrow(normal(tokens * s.k, 1, 1), c.precision);
  const Tensor residual = narrow(normal(tokens * s.n, 1, 2), c.precision);
  const std::vector<float> weight =
      normal(static_cast<std::size_t>(s.n) * s.k, 1 / std::sqrt(static_cast<float>(s.k)), 3);
  const std::vector<float> bias = normal(s.n, 1, 4);
  const DeviceBuffer dx = on_device(x), dr = s.residual ? on_device(residual) : DeviceBuffer(),
                     dw = upload_bytes(pack_projection(c.plan, weight, bias, c.precision), "harness"),
                     dy(residual.bytes(), "harness");
  const TokenProjection kernel(s, c.plan, c.precision, device);
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  check(cudaMemsetAsync(dy.data(), 0xff, dy.bytes(), stream), "poison");
  kernels::ProjectParams p{};
  p.x = dx.data(), p.y = dy.data(), p.residual = dr.data(), p.weights = dw.data();
  p.cells = {0, c.tokens, c.tokens}, p.tokens = static_cast<int>(c.tokens), p.eps = 1e-5f;
  p.position_divisor = 1, p.length = 1;
  kernel.enqueue(stream, p);
  check(cudaStreamSynchronize(stream), "run");
  if (once) return;

  Tensor y(storage_type(c.precision), residual.shape());
  check(cudaMemcpy(y.data(), dy.data(), y.bytes(), cudaMemcpyDeviceToHost), "copy");
  const Tensor wide_x = x.to(DType::f32), wide_r = residual.to(DType::f32), wide_y = y.to(DType::f32);
  double error = 0, size = 0;
  bool finite = true;
  for (const float v : wide_y.values<float>()) finite = finite && std::isfinite(v);
  for (std::size_t i = 0; i < 97; ++i) {
    const std::size_t t = i * 7919 % tokens;
    const std::size_t token = i == 0 ? tokens - 1 : t;
    const float* r = s.residual ? wide_r.values<float>().data() + token * s.n : nullptr;
    const auto exact = reference(s, wide_x.values<float>().data() + token * s.k, r, weight, bias, p.eps);
    for (int n = 0; n < s.n; ++n) {
      const double got = wide_y.values<float>()[token * s.n + n];
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
  const double bytes = static_cast<double>(x.bytes() + y.bytes() * (s.residual ? 2 : 1));
  const double us = times[4];
  std::printf("%s  error %.1e%s  %7.1f us (%.1f to %.1f)  %.2f TB/s  %.0f TFLOP/s\n", words(c).c_str(),
              std::sqrt(error / size), finite ? "" : " NOT FINITE", us, times.front(), times.back(),
              bytes / us / 1e6, 2.0 * static_cast<double>(c.tokens) * s.k * s.n / us / 1e6);
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
