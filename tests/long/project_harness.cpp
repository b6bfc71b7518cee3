// Checks and times the projections of the long family by themselves, in several plans each.
//
//   long_project_harness [FILTER]         some tokens against float64, then the median of 9 graphs of 20
//   launches long_project_harness --check          every token of small problems with all options
//   long_project_harness --once [FILTER]  one launch of each, for profilers
//   long_project_harness --compile        registers and spills of all; needs no GPU
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <regex>
#include <span>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "cuda/blas.h"
#include "cuda/kernel.h"
#include "cuda/long/projection.h"
#include "cuda/long/wide_projection.h"
#include "warpweave/tensor.h"

namespace {

using namespace warpweave;
using namespace warpweave::cuda;
using namespace warpweave::cuda::long_sequences;

using cuda::long_sequences::ProjectionShape;

struct Library {};  // cuBLASLt's product of the same size, without a norm
using Plan = std::variant<layout::ProjectPlan, layout::WidePlan, Library>;

struct Case {
  std::string name;
  std::int64_t tokens;
  ProjectionShape shape;
  Plan plan;
  Precision precision = Precision::bf16;
  std::int64_t piece = 0;  // of a band of columns that is narrower than the grid; 0: the whole grid
  float offset = 0;        // of some tokens
  float eps = 1e-5f;
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
  const auto stay = [&](const char* name, std::int64_t tokens, const ProjectionShape& s, int slice = 0,
                        int chunk = 0, int groups = 0, Precision precision = Precision::bf16) {
    layout::ProjectPlan plan = plan_of(s);
    if (slice) plan.slice = slice, plan.chunk = chunk, plan.groups = groups;
    list.push_back({name, tokens, s, plan, precision});
  };
  const auto wide = [&](const char* name, std::int64_t tokens, const ProjectionShape& s,
                        Precision precision = Precision::bf16) {
    list.push_back({name, tokens, s, wide_plan_of(s), precision});
  };
  const auto library = [&](const char* name, std::int64_t tokens, const ProjectionShape& s) {
    list.push_back({name, tokens, s, Library{}});
  };
  const std::int64_t pair = 512 * 512, msa = 256 * 384, msa768 = 128 * 512, audio = 800 * 60,
                     video = 2 * 16 * 1568;
  stay("pair512 qkv", pair, qkv(128, 128));
  stay("pair512 out", pair, output(128, 128));
  stay("msa qkv", msa, qkv(256, 256));
  wide("msa qkv", msa, qkv(256, 256));
  stay("msa out", msa, output(256, 256));
  wide("msa out", msa, output(256, 256));
  for (const auto& [name, tokens, dim] : {std::tuple{"audio", audio, 384}, std::tuple{"msa768", msa768, 768},
                                          std::tuple{"video", video, 768}}) {
    const std::string q = std::string(name) + " qkv", o = std::string(name) + " out";
    library(q.c_str(), tokens, qkv(dim, dim));
    wide(q.c_str(), tokens, qkv(dim, dim));
    library(o.c_str(), tokens, output(dim, dim));
    wide(o.c_str(), tokens, output(dim, dim));
  }
  ProjectionShape bare = qkv(768, 768);
  bare.norm = graph::NormKind::none, bare.biased = false;
  wide("msa768 qkv bare", msa768, bare);
  return list;
}

// Small, odd, with all options.
std::vector<Case> small_cases() {
  std::vector<Case> list;
  const auto add = [&](std::int64_t tokens, ProjectionShape s, std::int64_t piece, float offset,
                       Precision precision) -> Case& {
    list.push_back({"check", tokens, s, wide_plan_of(s), precision, piece, offset});
    return list.back();
  };
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    ProjectionShape s = qkv(768, 256);
    add(1, s, 0, 0, precision);
    add(397, s, 0, 0, precision);
    add(520, s, 0, 200, precision);
    s = qkv(264, 96), s.masked = true, s.rope_head = 48;
    add(37 * 9, s, 37, 0, precision);
    s = qkv(512, 192), s.norm = graph::NormKind::rms, s.biased = false, s.rope_head = 32;
    add(129, s, 0, 3, precision);
    s = qkv(320, 64), s.norm = graph::NormKind::none, s.masked = true;
    add(300, s, 150, 0, precision);
    s = qkv(1024, 48), s.masked = true, s.rope_head = 16;
    add(257, s, 0, 40, precision);
    s = output(384, 768);
    add(300, s, 100, 0, precision);
    s = output(1000, 64), s.residual = false;
    add(200, s, 0, 0, precision);
    s = output(520, 272), s.biased = false;
    add(131, s, 0, 0, precision);
    // Tiles one after another.
    s = qkv(256, 256);
    add(70000, s, 0, 0, precision);
    add(300, qkv(384, 128), 0, 100, precision);
  }
  return list;
}

std::string words(const Case& c) {
  char text[200];
  std::string plan = "cuBLASLt, no norm";
  if (const auto* p = std::get_if<layout::ProjectPlan>(&c.plan)) {
    std::snprintf(text, sizeof text, "stays, slice %d chunk %d groups %d", p->slice, p->chunk, p->groups);
    plan = text;
  } else if (const auto* w = std::get_if<layout::WidePlan>(&c.plan)) {
    std::snprintf(text, sizeof text, "wide, %d columns, %d stages", w->columns, w->stages);
    plan = text;
  }
  std::snprintf(text, sizeof text, "%-16s %-4s %4d -> %4d  %-36s", c.name.c_str(),
                std::string(to_string(c.precision)).c_str(), c.shape.k, c.shape.n, plan.c_str());
  return text;
}

std::vector<float> normal(std::size_t count, float size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> values(count);
  for (float& v : values) v = size * draw(random);
  return values;
}

// Random elements, on the device as many of them as wanted, over and over; rows of `width` whose number is
// divisible by 3 are moved by `offset`.
struct Repeated {
  static constexpr std::size_t kPeriod = 1000003;
  Tensor values;  // as float32 numbers of the type
  DeviceBuffer device;

  Repeated(std::size_t count, Precision precision, unsigned seed, std::size_t width = 1, float offset = 0)
      : device(std::max<std::size_t>(count, 8) * 2, "harness") {
    const std::size_t period = std::min(kPeriod, std::max<std::size_t>(count, 8));
    std::vector<float> draw = normal(period, 1, seed);
    if (offset != 0)
      for (std::size_t i = 0; i < period; ++i)
        if (i / width % 3 == 0) draw[i] += offset;
    const Tensor narrow = Tensor::from({static_cast<std::int64_t>(period)}, draw).to(storage_type(precision));
    values = narrow.to(DType::f32);
    for (std::size_t i = 0; i < count; i += period)
      check(cudaMemcpy(device.data() + i * 2, narrow.data(), std::min(period, count - i) * 2,
                       cudaMemcpyHostToDevice),
            "harness");
    check(cudaDeviceSynchronize(), "harness");
  }
  std::vector<float> part(std::size_t first, std::size_t count) const {
    std::vector<float> list(count);
    for (std::size_t i = 0; i < count; ++i)
      list[i] = values.values<float>()[(first + i) % static_cast<std::size_t>(values.shape()[0])];
    return list;
  }
};

// One token in float64, from operands as they are given.
std::vector<double> reference(const ProjectionShape& s, const std::vector<float>& x,
                              const std::vector<float>& residual, const std::vector<float>& weight,
                              const std::vector<float>& bias, const float* rotation, bool valid, double eps) {
  std::vector<double> v(x.begin(), x.end()), y(static_cast<std::size_t>(s.n));
  if (s.norm != graph::NormKind::none) {
    double mean = 0, squares = 0;
    if (s.norm == graph::NormKind::layer)
      for (const double a : v) mean += a / s.k;
    for (double& a : v) a -= mean, squares += a * a / s.k;
    for (double& a : v) a /= std::sqrt(squares + eps);
  }
  for (int n = 0; n < s.n; ++n) {
    y[n] = s.biased ? static_cast<double>(bias[n]) : 0.0;
    for (int k = 0; k < s.k; ++k) y[n] += v[k] * weight[static_cast<std::size_t>(n) * s.k + k];
  }
  if (s.rope_head)
    for (int n = 0; n < s.n / 3 * 2; n += 2) {
      const double c = rotation[n % s.rope_head], d = rotation[n % s.rope_head + 1], a = y[n];
      y[n] = a * c - y[n + 1] * d, y[n + 1] = y[n + 1] * c + a * d;
    }
  if (s.masked && !valid)
    for (int n = s.n / 3; n < s.n; ++n) y[n] = 0;
  if (s.residual)
    for (int n = 0; n < s.n; ++n) y[n] += residual[n];
  return y;
}

// A case on the device. Where tokens are pieces of a wider grid, they begin at its second row and third
// column.
class Problem {
 public:
  static constexpr std::int64_t kDivisor = 3, kLength = 11;  // positions of tokens

  Problem(const Case& c, const GpuDevice& device)
      : c_(c),
        s_(c.shape),
        tokens_(static_cast<std::size_t>(c.tokens)),
        cells_(c.piece ? kernels::Cells{c.piece + 5 + 2, c.piece, c.piece + 5}
                       : kernels::Cells{0, c.tokens, c.tokens}),
        rows_(c.piece ? (tokens_ / c.piece + 2) * (c.piece + 5) : tokens_),
        x_((s_.qkv ? rows_ : tokens_) * s_.k, c.precision, 1, s_.k, c.offset),
        residual_(s_.residual ? rows_ * s_.n : 1, c.precision, 2),
        weight_(normal(static_cast<std::size_t>(s_.n) * s_.k, 1 / std::sqrt(static_cast<float>(s_.k)), 3)),
        bias_(normal(static_cast<std::size_t>(s_.n), 1, 4)),
        y_((s_.qkv ? tokens_ : rows_) * s_.n * 2, "harness") {
    mask_.resize(rows_);
    for (std::size_t i = 0; i < rows_; ++i) mask_[i] = i * 2654435761u / 65536 % 3 != 0;
    device_mask_ = upload_bytes({reinterpret_cast<const std::byte*>(mask_.data()), mask_.size()}, "harness");
    for (int i = 0; i < kLength * std::max(s_.rope_head, 2) / 2; ++i) {
      rotation_.push_back(std::cos(0.3f * static_cast<float>(i)));
      rotation_.push_back(std::sin(0.3f * static_cast<float>(i)));
    }
    device_rotation_ = upload_bytes(std::as_bytes(std::span(rotation_)), "harness");
    const std::vector<float> bias = s_.biased ? bias_ : std::vector<float>();
    std::vector<float> narrow_bias;
    if (const auto* p = std::get_if<layout::ProjectPlan>(&c.plan)) {
      weights_ = upload_bytes(pack_projection(*p, weight_, bias, c.precision), "harness");
      stay_ = TokenProjection(s_, *p, c.precision, device);
    } else if (const auto* w = std::get_if<layout::WidePlan>(&c.plan)) {
      weights_ = upload_bytes(pack_wide(s_, *w, weight_, bias, c.precision), "harness");
      wide_ = WideProjection(s_, *w, c.precision, device);
    } else {
      const Tensor matrix = Tensor::from({s_.n * s_.k}, weight_).to(storage_type(c.precision)),
                   vector = Tensor::from({s_.n}, bias_).to(storage_type(c.precision));
      weights_ = upload_bytes({static_cast<const std::byte*>(matrix.data()), matrix.bytes()}, "harness");
      device_bias_ = upload_bytes({static_cast<const std::byte*>(vector.data()), vector.bytes()}, "harness");
      ProductSpec spec;
      spec.n = s_.n, spec.k = s_.k, spec.precision = c.precision, spec.residual = s_.residual;
      spec.weight = weights_.data(), spec.bias = s_.residual ? device_bias_.data() : nullptr;
      spec.typical_tokens = std::min<std::int64_t>(c.tokens, 65536);
      product_ = device.blas()->product(spec);
    }
    check(cudaDeviceSynchronize(), "harness");
  }

  void enqueue(cudaStream_t stream, bool in_place) const {
    const void* residual = in_place ? static_cast<const void*>(y_.data()) : residual_.device.data();
    const auto* mask = reinterpret_cast<const unsigned char*>(device_mask_.data());
    const auto* rotation = reinterpret_cast<const float*>(device_rotation_.data());
    if (std::holds_alternative<layout::ProjectPlan>(c_.plan)) {
      kernels::ProjectParams p{};
      p.x = x_.device.data(), p.y = y_.data(), p.residual = residual, p.weights = weights_.data();
      p.mask = mask, p.rotation = rotation, p.cells = cells_, p.tokens = static_cast<int>(tokens_),
      p.eps = c_.eps;
      p.position_divisor = kDivisor, p.length = kLength;
      stay_.enqueue(stream, p);
    } else if (std::holds_alternative<layout::WidePlan>(c_.plan)) {
      WideRun r;
      r.x = x_.device.data(), r.y = y_.data(), r.residual = residual, r.mask = mask,
      r.weights = weights_.data();
      r.rotation = rotation, r.cells = cells_, r.tokens = c_.tokens, r.eps = c_.eps;
      r.position_divisor = kDivisor, r.length = kLength;
      wide_.enqueue(stream, r);
    } else {
      product_->enqueue(stream, x_.device.data(), y_.data(), c_.tokens, 1, c_.tokens);
    }
  }

  // Poisoned, or what is to be added where the result is in its place.
  void prepare(cudaStream_t stream, bool in_place) const {
    check(cudaMemsetAsync(y_.data(), 0xff, y_.bytes(), stream), "poison");
    if (in_place)
      check(cudaMemcpyAsync(y_.data(), residual_.device.data(), y_.bytes(), cudaMemcpyDeviceToDevice, stream),
            "copy");
    check(cudaStreamSynchronize(stream), "poison");
  }

  // Relative error of `count` tokens; NaN where something was not written.
  double error(std::size_t count) const {
    double error = 0, size = 0;
    std::vector<std::byte> all;
    if (count == tokens_) {
      all.resize(y_.bytes());
      check(cudaMemcpy(all.data(), y_.data(), all.size(), cudaMemcpyDeviceToHost), "copy");
    }
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t token = count == tokens_ ? i : i == 0 ? tokens_ - 1 : i * 7919 % tokens_;
      const std::size_t cell = cells_.first + token / cells_.columns * cells_.pitch + token % cells_.columns;
      const std::size_t position = token / kDivisor % kLength;
      const auto exact =
          reference(s_, x_.part((s_.qkv ? cell : token) * s_.k, s_.k),
                    s_.residual ? residual_.part(cell * s_.n, s_.n) : std::vector<float>(), weight_, bias_,
                    rotation_.data() + position * s_.rope_head, mask_[cell] != 0, c_.eps);
      Tensor y(storage_type(c_.precision), {s_.n});
      const std::size_t at = (s_.qkv ? token : cell) * s_.n * 2;
      if (!all.empty())
        std::memcpy(y.data(), all.data() + at, y.bytes());
      else
        check(cudaMemcpy(y.data(), y_.data() + at, y.bytes(), cudaMemcpyDeviceToHost), "copy");
      const Tensor wide = y.to(DType::f32);
      for (int n = 0; n < s_.n; ++n) {
        const double got = wide.values<float>()[n];
        error += (got - exact[n]) * (got - exact[n]), size += exact[n] * exact[n];
      }
    }
    return std::sqrt(error / size);
  }

  // Whether everything outside of the tokens is as it was.
  bool kept() const {
    if (s_.qkv || !c_.piece) return true;
    std::vector<std::uint16_t> all(y_.bytes() / 2);
    check(cudaMemcpy(all.data(), y_.data(), y_.bytes(), cudaMemcpyDeviceToHost), "copy");
    for (std::size_t cell = 0; cell < rows_; ++cell) {
      const std::int64_t from = static_cast<std::int64_t>(cell) - cells_.first;
      const bool token =
          from >= 0 && from % cells_.pitch < cells_.columns && from / cells_.pitch < c_.tokens / c_.piece;
      for (int n = 0; n < s_.n && !token; ++n)
        if (all[cell * s_.n + n] != 0xffff) return false;
    }
    return true;
  }

 private:
  const Case& c_;
  const ProjectionShape& s_;
  std::size_t tokens_;
  kernels::Cells cells_;
  std::size_t rows_;  // cells of the grid
  Repeated x_, residual_;
  std::vector<float> weight_, bias_, rotation_;
  std::vector<unsigned char> mask_;
  DeviceBuffer y_, weights_, device_mask_, device_rotation_, device_bias_;
  TokenProjection stay_;
  WideProjection wide_;
  std::unique_ptr<const Product> product_;
};

class Stream {
 public:
  Stream() { cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Limits on the error: rounding of operands and of the result.
double limit(Precision precision) { return precision == Precision::bf16 ? 5e-3 : 7e-4; }

int check_all(const GpuDevice& device) {
  int wrong = 0;
  for (const Case& c : small_cases()) {
    const Problem problem(c, device);
    const Stream stream;
    for (const bool in_place : {false, true}) {
      if (in_place && !c.shape.residual) continue;
      problem.prepare(stream, in_place);
      problem.enqueue(stream, in_place);
      check(cudaStreamSynchronize(stream), words(c).c_str());
      const double error = problem.error(c.tokens > 1000 ? 500 : static_cast<std::size_t>(c.tokens));
      const bool right = error <= limit(c.precision) && (in_place || problem.kept());
      wrong += !right;
      std::printf("%s  %5lld tokens  error %.1e%s\n", words(c).c_str(), static_cast<long long>(c.tokens),
                  error, right ? "" : "  WRONG");
      std::fflush(stdout);
    }
  }
  std::printf("%d wrong\n", wrong);
  return wrong ? 1 : 0;
}

void measure(const Case& c, const GpuDevice& device, bool once) {
  const Problem problem(c, device);
  const Stream stream;
  problem.prepare(stream, false);
  problem.enqueue(stream, false);
  check(cudaStreamSynchronize(stream), "run");
  if (once) return;
  const bool library = std::holds_alternative<Library>(c.plan);
  const double error = library ? 0 : problem.error(41);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t run = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < 20; ++i) problem.enqueue(stream, false);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&run, graph, 0), "graph");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 9; ++i) {
    float ms = 0;
    check(cudaEventRecord(begin, stream), "event");
    check(cudaGraphLaunch(run, stream), "graph");
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "graph");
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 2) times.push_back(ms * 1000 / 20);
  }
  std::sort(times.begin(), times.end());
  const auto tokens = static_cast<double>(c.tokens);
  const double bytes = 2 * tokens * (c.shape.k + c.shape.n * (c.shape.residual ? 2 : 1));
  const double us = times[times.size() / 2];
  std::printf("%s  error %.1e  %7.1f us (%.1f to %.1f)  %.2f TB/s  %.0f TFLOP/s\n", words(c).c_str(), error,
              us, times.front(), times.back(), bytes / us / 1e6,
              2.0 * tokens * c.shape.k * c.shape.n / us / 1e6);
  std::fflush(stdout);
  cudaGraphExecDestroy(run);
  cudaGraphDestroy(graph);
}

// The kernels of a case.
std::vector<KernelSpec> kernels_of(const Case& c) {
  std::vector<KernelSpec> list;
  if (const auto* p = std::get_if<layout::ProjectPlan>(&c.plan)) {
    list.push_back(projection_kernel(c.shape, *p, c.precision));
  } else if (const auto* w = std::get_if<layout::WidePlan>(&c.plan)) {
    list.push_back(wide_kernel(c.shape, *w, c.precision));
  }
  return list;
}

void compile() {
  const Compiler compiler;
  std::vector<Case> all = cases();
  for (const Case& c : small_cases()) all.push_back(c);
  for (const Case& c : all) {
    for (const KernelSpec& spec : kernels_of(c)) {
      const auto kernel = compiler.compile(spec, 90);
      std::smatch registers, spills;
      std::regex_search(kernel.log, registers, std::regex("Used (\\d+) registers"));
      const bool spilled = std::regex_search(kernel.log, spills, std::regex("([1-9]\\d*) bytes spill"));
      std::printf("%s  %s registers%s%s\n", words(c).c_str(), registers[1].str().c_str(),
                  spilled ? (" SPILLS " + spills[1].str()).c_str() : "",
                  std::regex_search(kernel.log, std::regex("C751[0-6]")) ? " SERIALISED" : "");
    }
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
    const GpuDevice device(0);
    if (first == "--check") return check_all(device);
    const bool once = first == "--once";
    const std::string filter = once ? (argc > 2 ? argv[2] : "") : first;
    for (const Case& c : cases())
      if (words(c).find(filter) != std::string::npos) measure(c, device, once);
  } catch (const std::exception& e) {
    std::printf("%s\n", e.what());
    return 1;
  }
}
