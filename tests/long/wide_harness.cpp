// Compiles, checks and times the kernels for norm, q, k, v, and attention of short sequences, of wide tokens
// on compute capability 9.0 by themselves, beside the norm, cuBLASLt's product and attention's own kernel:
//
//   compile [WORD]    every kernel of the cases, into the cache; needs no GPU
//   check [WORD]      random problems against float64; outputs poisoned, NaN in one sequence
//   small             a few tiny problems, for compute-sanitizer
//   time [WORD]       the shapes of docs/performance.md; microseconds a layer
//   steady [WORD]     the same under the GPU's power limit, and the energy (tests/gpu/steady.h)
//   once WORD KERNEL  one launch of a timed case, for profilers
//
// WORD is a part of the names of cases.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/composed/attention.h"
#include "cuda/composed/family.h"
#include "cuda/composed/projection.h"
#include "cuda/composed/wide_layer.h"
#include "cuda/memory.h"
#include "gpu/steady.h"
#include "warpweave/tensor.h"

namespace {

using namespace warpweave;
using namespace warpweave::cuda;
using kernels::Sequences;

#define CHECK_CUDA(call) check(call, #call)

// A layer on a grid [batch, rows, columns] of k channels.
struct Case {
  std::string name;
  int k, heads, head, batch, rows, columns;
  bool along_rows;
  Precision precision = Precision::bf16;
  double spread = 1;  // of q and k
  bool biased = true, folded = true;
  graph::NormKind norm = graph::NormKind::layer;
  double mean = 0.5;  // of tokens, whose deviation is 1

  std::int64_t length() const { return along_rows ? columns : rows; }
  std::int64_t tokens() const { return std::int64_t{batch} * rows * columns; }
  std::int64_t sequences() const { return tokens() / length(); }
  std::int64_t width() const { return std::int64_t{heads} * head; }
  WideShape shape() const { return {heads, head, k, norm}; }
  AttentionShape attention() const { return {heads, head, length(), false, folded}; }
  Sequences places() const {
    return along_rows ? Sequences{rows, std::int64_t{rows} * columns, columns, 1}
                      : Sequences{columns, std::int64_t{rows} * columns, 1, columns};
  }
  std::int64_t token(std::int64_t sequence, std::int64_t l) const {
    const Sequences t = places();
    return sequence / t.inner * t.outer_stride + sequence % t.inner * t.inner_stride + l * t.step;
  }
  float scale() const { return folded ? 0.69314718f : 1 / std::sqrt(static_cast<float>(head)); }
  WideRun run(const void* x, void* out, void* gains) const {
    return {.x = x,
            .cells = {0, tokens(), tokens()},
            .tokens = tokens(),
            .out = out,
            .gains = gains,
            .copy = nullptr,
            .grid_sequences = places(),
            .token_sequences = places(),
            .sequences = sequences(),
            .length = length(),
            .scale = scale()};
  }
};

std::vector<Case> checked() {
  std::vector<Case> list;
  for (const int length : {1, 2, 15, 16}) list.push_back({"odd", 384, 3, 64, 2, 37, length, true});
  for (const int length : {17, 20, 32}) list.push_back({"odd", 320, 3, 48, 3, 7, length, true});
  for (const int length : {33, 47, 60, 64}) list.push_back({"odd columns", 72, 2, 48, 2, length, 5, false});
  for (const int length : {65, 100, 127, 128})
    list.push_back({"odd columns", 520, 2, 64, 2, length, 5, false});
  list.push_back({"steep", 384, 2, 64, 1, 5, 100, true, Precision::bf16, 20});
  list.push_back({"unfolded", 384, 2, 64, 1, 5, 100, true, Precision::bf16, 1, true, false});
  list.push_back({"no bias", 384, 2, 48, 1, 5, 60, true, Precision::bf16, 1, false});
  list.push_back({"many", 768, 3, 64, 2, 128, 200, false});
  list.push_back({"many audio", 384, 8, 48, 1, 300, 60, true});
  list.push_back({"many video", 768, 12, 64, 2, 16, 300, false});
  for (const auto norm : {graph::NormKind::none, graph::NormKind::rms}) {
    list.push_back({"norm", 384, 2, 48, 1, 5, 60, true, Precision::bf16, 1, true, true, norm});
    list.push_back({"norm", 520, 2, 64, 1, 5, 60, false, Precision::bf16, 1, true, true, norm});
  }
  list.push_back(
      {"far mean", 384, 2, 48, 1, 5, 60, true, Precision::bf16, 1, true, true, graph::NormKind::layer, 100});
  list.push_back({"far mean", 776, 2, 64, 1, 100, 3, false, Precision::bf16, 1, true, true,
                  graph::NormKind::layer, -100});
  list.push_back(
      {"far mean", 384, 2, 64, 1, 5, 60, true, Precision::fp16, 1, true, true, graph::NormKind::layer, 3000});
  for (std::size_t i = 0, plain = list.size(); i < plain; ++i) {
    Case c = list[i];
    c.precision = Precision::fp16, c.name += " fp16";
    list.push_back(c);
  }
  return list;
}
std::vector<Case> small() {
  return {{"small", 136, 2, 48, 1, 5, 60, true},
          {"small columns", 200, 3, 64, 1, 100, 2, false},
          {"small short", 448, 2, 64, 1, 9, 13, true, Precision::fp16},
          {"small columns short", 384, 2, 48, 2, 30, 5, false}};
}
std::vector<Case> timed() {
  return {
      {"msa768 columns", 768, 12, 64, 1, 128, 512, false}, {"audio rows", 384, 8, 48, 1, 800, 60, true},
      {"msa768 rows", 768, 12, 64, 1, 128, 512, true},     {"audio columns", 384, 8, 48, 1, 800, 60, false},
      {"video columns", 768, 12, 64, 2, 16, 1568, false},  {"image rows", 512, 8, 64, 4, 64, 64, true},
      {"image columns", 512, 8, 64, 4, 64, 64, false},     {"msa rows", 256, 8, 32, 1, 256, 384, true},
      {"wide rows 32", 1024, 16, 64, 16, 32, 32, true},    {"few", 384, 8, 48, 1, 32, 60, true},
      {"96 of 128", 768, 12, 64, 1, 96, 512, false}};
}

struct Data {
  std::vector<float> values;  // as the device has them
  Tensor bits;
};
Data random(std::int64_t count, double size, Precision precision, std::uint32_t seed, double mean = 0) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  Tensor x(DType::f32, {count});
  for (float& v : x.values<float>()) v = normal(engine) * static_cast<float>(size) + static_cast<float>(mean);
  Data d{{}, x.to(storage_type(precision))};
  const Tensor back = d.bits.to(DType::f32);
  d.values.assign(back.values<float>().begin(), back.values<float>().end());
  return d;
}

struct Layer {
  std::vector<float> weight, bias, gain, shift;
  std::unique_ptr<const WideLayer> wide;
  std::unique_ptr<const Projection> projection;

  Layer(const Case& c, const GpuDevice& device) {
    weight = random(3 * c.width() * c.k, 1 / std::sqrt(static_cast<double>(c.k)), Precision::fp32, 3).values;
    if (c.biased) bias = random(3 * c.width(), 0.3, Precision::fp32, 4).values;
    gain = random(c.k, 0.2, Precision::fp32, 6, 1).values;
    shift = random(c.k, 0.2, Precision::fp32, 7).values;
    const double factor = c.folded ? 1.4426950408889634 / std::sqrt(static_cast<double>(c.head)) : 1;
    for (std::int64_t row = 0; row < 2 * c.width(); ++row) {
      const double times = std::sqrt(c.spread) * (row < c.width() ? factor : 1);
      for (std::int64_t i = 0; i < c.k; ++i) weight[row * c.k + i] *= static_cast<float>(times);
    }
    wide = make_wide_layer(c.shape(),
                           {.qkv = weight,
                            .qkv_bias = bias,
                            .norm_weight = gain.data(),
                            .norm_bias = shift.data(),
                            .eps = 1e-5f},
                           c.precision, device);
    projection = make_composed_projection({.n = 3 * c.width(), .k = c.k}, weight, bias, c.precision, device);
  }
};

// A normalised token.
std::vector<double> normalised(const Case& c, const Layer& layer, const float* x) {
  std::vector<double> y(x, x + c.k);
  double mean = 0, square = 0;
  for (const double v : y) mean += v / c.k;
  if (c.norm != graph::NormKind::layer) mean = 0;
  for (double& v : y) v -= mean, square += v * v / c.k;
  const double gain = c.norm == graph::NormKind::none ? 1 : 1 / std::sqrt(square + 1e-5);
  for (int i = 0; i < c.k; ++i) y[i] = y[i] * gain * layer.gain[i] + layer.shift[i];
  return y;
}

// Of one sequence and head, in float64: with attention o [length, head], else q, k, v [length, 3 head].
std::vector<double> expected(const Case& c, const Layer& layer, const std::vector<float>& x,
                             std::int64_t sequence, int head, bool attends) {
  const std::int64_t L = c.length();
  std::vector<double> qkv[3], o(L * c.head, 0.0), all;
  for (auto& part : qkv) part.resize(L * c.head);
  for (std::int64_t l = 0; l < L; ++l) {
    const auto token = normalised(c, layer, x.data() + c.token(sequence, l) * c.k);
    for (int part = 0; part < 3; ++part) {
      for (int i = 0; i < c.head; ++i) {
        const std::int64_t row = (part * c.heads + head) * c.head + i;
        double sum = c.biased ? layer.bias[row] : 0;
        for (int k = 0; k < c.k; ++k) sum += token[k] * layer.weight[row * c.k + k];
        qkv[part][l * c.head + i] = sum;
        all.push_back(sum);
      }
    }
  }
  if (!attends) return all;
  for (std::int64_t l = 0; l < L; ++l) {
    std::vector<double> s(L);
    for (std::int64_t j = 0; j < L; ++j) {
      for (int i = 0; i < c.head; ++i) s[j] += qkv[0][l * c.head + i] * qkv[1][j * c.head + i];
      s[j] *= c.scale();
    }
    const double top = *std::max_element(s.begin(), s.end());
    double total = 0;
    for (double& w : s) total += w = std::exp(w - top);
    for (std::int64_t j = 0; j < L; ++j)
      for (int i = 0; i < c.head; ++i) o[l * c.head + i] += s[j] / total * qkv[2][j * c.head + i];
  }
  return o;
}

struct Candidate {
  std::string name;
  WidePlan plan;
};
std::vector<Candidate> candidates(const Case& c) {
  std::vector<Candidate> list;
  const auto add = [&](const std::string& name, const WidePlan& plan) { list.push_back({name, plan}); };
  if (const auto plan = any_wide_attention_plan(c.shape(), c.attention())) add("with attention", *plan);
  add("stored", store_plan(c.shape()));
  return list;
}

int check_case(const Case& c, const GpuDevice& device, std::uint32_t seed) {
  Data d = random(c.tokens() * c.k, 1, c.precision, seed, c.mean);
  const std::int64_t broken = c.sequences() > 1 ? 1 : -1;  // a sequence full of NaN, which must stay alone
  auto bits = d.bits.values<std::uint16_t>();
  for (std::int64_t l = 0; broken >= 0 && l < c.length(); ++l)
    std::fill_n(bits.begin() + c.token(broken, l) * c.k, c.k, std::uint16_t{0x7fff});
  const DeviceBuffer x = upload_bytes({static_cast<const std::byte*>(d.bits.data()), d.bits.bytes()}, "x");
  const DeviceBuffer gains(static_cast<std::size_t>(c.tokens()) * 8, "gains");
  const Layer layer(c, device);
  int failures = 0;
  for (const auto& [name, plan] : candidates(c)) {
    const bool attends = plan.slot > 0;
    const std::int64_t width = (attends ? 1 : 3) * c.width();
    const std::size_t bytes = static_cast<std::size_t>(c.tokens() * width) * 2;
    const DeviceBuffer out(bytes, "out");
    const auto operation = make_wide_operation(*layer.wide, plan);
    CHECK_CUDA(cudaMemset(out.data(), 0xff, bytes));
    CHECK_CUDA(cudaMemset(gains.data(), 0xff, gains.bytes()));
    CHECK_CUDA(cudaDeviceSynchronize());
    operation->enqueue(nullptr, c.run(x.data(), out.data(), gains.data()));
    Tensor got(storage_type(c.precision), {c.tokens() * width});
    CHECK_CUDA(cudaMemcpy(got.data(), out.data(), bytes, cudaMemcpyDeviceToHost));
    CHECK_CUDA(cudaDeviceSynchronize());
    const Tensor wide = got.to(DType::f32);
    const auto y = wide.values<float>();
    int wrong_kind = 0;
    for (std::int64_t s = 0; s < c.sequences(); ++s)
      for (std::int64_t l = 0; l < c.length(); ++l)
        for (std::int64_t i = 0; i < width; ++i)
          wrong_kind += std::isfinite(y[c.token(s, l) * width + i]) == (s == broken);
    double difference = 0, size = 0, worst = 0;
    std::vector<std::int64_t> looked_at = {0, c.sequences() / 2, c.sequences() - 1};
    std::erase(looked_at, broken);
    for (const std::int64_t s : looked_at) {
      for (const int h : {0, c.heads - 1}) {
        const auto e = expected(c, layer, d.values, s, h, attends);
        const int parts = attends ? 1 : 3;
        for (std::size_t i = 0; i < e.size(); ++i) {
          const auto at = static_cast<std::int64_t>(i), l = at / (parts * c.head), part = at / c.head % parts;
          const double have = y[c.token(s, l) * width + part * c.width() + h * c.head + at % c.head];
          difference += (have - e[i]) * (have - e[i]), size += e[i] * e[i];
          worst = std::max(worst, std::fabs(have - e[i]));
        }
      }
    }
    const double error = std::sqrt(difference / size);
    const double allowed = (c.precision == Precision::bf16 ? 8e-3 : 1e-3) * std::max(1.0, c.spread / 2) *
                           (c.mean > 1000 ? 2 : 1);
    const bool good = wrong_kind == 0 && error < allowed;
    failures += !good;
    std::printf("%-22s k %-4d %2dx%-2d L %-4lld %-16s error %.2e, largest %.2e%s\n", c.name.c_str(), c.k,
                c.heads, c.head, static_cast<long long>(c.length()), name.c_str(), error, worst,
                good         ? ""
                : wrong_kind ? "  WRONG (not finite, or not alone)"
                             : "  WRONG");
    std::fflush(stdout);
  }
  return failures;
}

void time_case(const Case& c, const GpuDevice& device, const std::string& only, bool steady) {
  const std::size_t bytes = static_cast<std::size_t>(c.tokens()) * 2;
  DeviceBuffer x(bytes * c.k, "x"), normalised(bytes * c.k, "x"), qkv(bytes * 3 * c.width(), "qkv"),
      o(bytes * c.width(), "o"), gains(bytes * 4, "gains");
  const Data part = random(1 << 20, 1, c.precision, 5);
  for (std::size_t at = 0; at < x.bytes(); at += part.bits.bytes())
    CHECK_CUDA(cudaMemcpy(x.data() + at, part.bits.data(), std::min(part.bits.bytes(), x.bytes() - at),
                          cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaDeviceSynchronize());
  const Layer layer(c, device);
  cudaStream_t stream;
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  const double flops = 6.0 * static_cast<double>(c.tokens()) * static_cast<double>(c.width()) * c.k;
  const auto measure = [&](const std::string& name, const auto& launch) {
    if (!only.empty() && name != only) return;
    launch();
    CHECK_CUDA(cudaStreamSynchronize(stream));
    if (!only.empty()) return;
    if (steady) {
      const auto s = test::steady(stream, launch, 0.3);
      std::printf("%-16s %-18s steady %7.1f us, %5.1f mJ\n", c.name.c_str(), name.c_str(), s.microseconds,
                  s.millijoules());
      std::fflush(stdout);
      return;
    }
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 10; ++i) launch();
    CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&replay, graph, 0));
    std::vector<float> times;
    for (int i = 0; i < 9; ++i) {
      CHECK_CUDA(cudaEventRecord(begin, stream));
      CHECK_CUDA(cudaGraphLaunch(replay, stream));
      CHECK_CUDA(cudaEventRecord(end, stream));
      CHECK_CUDA(cudaEventSynchronize(end));
      float ms;
      CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
      times.push_back(ms * 100);
    }
    std::sort(times.begin(), times.end());
    std::printf("%-16s %-18s %7.1f us (shortest %.1f), %4.0f TFLOP/s\n", c.name.c_str(), name.c_str(),
                times[4], times[0], flops / times[4] / 1e6);
    std::fflush(stdout);
    CHECK_CUDA(cudaGraphExecDestroy(replay));
    CHECK_CUDA(cudaGraphDestroy(graph));
  };
  for (const auto& [name, plan] : candidates(c)) {
    const auto operation = make_wide_operation(*layer.wide, plan);
    void* const out = plan.slot ? o.data() : qkv.data();
    measure(name, [&] { operation->enqueue(stream, c.run(x.data(), out, gains.data())); });
  }
  const auto product = layer.projection->bind(c.tokens() / c.batch);
  const auto attention = make_attention(c.attention(), c.precision, device);
  kernels::AttentionParams a{};
  a.qkv = qkv.data(), a.o = o.data(), a.tokens = a.mask_cells = c.places();
  a.sequences = c.sequences(), a.length = c.length(), a.heads = c.heads, a.scale = c.scale();
  const ProjectionRun run{normalised.data(),           nullptr,    qkv.data(),
                          {0, c.tokens(), c.tokens()}, c.tokens(), nullptr};
  const auto composed = make_composed_family({});
  const auto norm = composed->norm({c.norm, c.k, c.k}, c.precision, device);
  const DeviceBuffer gain = upload(layer.gain), shift = upload(layer.shift);
  const kernels::NormParams n{x.data(),
                              normalised.data(),
                              nullptr,
                              reinterpret_cast<const float*>(gain.data()),
                              reinterpret_cast<const float*>(shift.data()),
                              {0, c.tokens(), c.tokens()},
                              c.tokens(),
                              c.k,
                              c.k,
                              1e-5f};
  measure("norm", [&] { norm->enqueue(stream, n); });
  measure("product", [&] { product->enqueue(stream, run); });
  measure("attention", [&] { attention->enqueue(stream, a); });
  measure("norm, product", [&] { norm->enqueue(stream, n), product->enqueue(stream, run); });
  measure("all three",
          [&] { norm->enqueue(stream, n), product->enqueue(stream, run), attention->enqueue(stream, a); });
  CHECK_CUDA(cudaEventDestroy(begin));
  CHECK_CUDA(cudaEventDestroy(end));
  CHECK_CUDA(cudaStreamDestroy(stream));
}

int compile(const std::string& word) {
  std::vector<KernelSpec> specs;
  for (const auto& list : {checked(), small(), timed()}) {
    for (const Case& c : list) {
      if (c.name.find(word) == std::string::npos) continue;
      const plan::Conditions conditions{c.precision, 90, 227 * 1024};
      for (const auto& candidate : candidates(c)) specs.push_back(wide_kernel(candidate.plan, c.precision));
      for (const auto& spec : attention_kernels(c.attention(), conditions)) specs.push_back(spec);
      const auto composed = make_composed_family({});
      for (const auto& spec : composed->norm_kernels({c.norm, c.k, c.k}, c.precision)) specs.push_back(spec);
      if (c.norm != graph::NormKind::none) specs.push_back(gains_kernel(c.shape(), c.precision));
    }
  }
  std::sort(specs.begin(), specs.end());
  specs.erase(std::unique(specs.begin(), specs.end()), specs.end());
  const auto compiled = Compiler().compile(specs, 90);
  int bad = 0, seen = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (!specs[i].file.starts_with("long/wide_")) continue;
    ++seen;
    const std::string& log = compiled[i].log;
    const bool spilled = std::regex_search(log, std::regex("[1-9]\\d* bytes spill"));
    const bool serial = log.find("C75") != std::string::npos;
    bad += spilled || serial;
    std::printf("%s%s%s\n", specs[i].expression.c_str(), spilled ? ", spills" : "",
                serial ? ", wgmma serialised" : "");
  }
  std::printf("%d kernels, %d with spills or serialised products\n", seen, bad);
  return bad || seen == 0 ? 1 : 0;
}

int run(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "", word = argc > 2 ? argv[2] : "",
                    kernel = argc > 3 ? argv[3] : "";
  const auto with = [&](std::vector<Case> list) {
    std::erase_if(list, [&](const Case& c) { return c.name.find(word) == std::string::npos; });
    return list;
  };
  if (command == "compile") return compile(word);
  const GpuDevice device(0);
  int failures = 0;
  std::uint32_t seed = 1;
  if (command == "check")
    for (const Case& c : with(checked())) failures += check_case(c, device, seed++);
  else if (command == "small")
    for (const Case& c : small()) failures += check_case(c, device, seed++);
  else if (command == "time" || command == "once" || command == "steady")
    for (const Case& c : with(timed())) time_case(c, device, kernel, command == "steady");
  else
    throw std::runtime_error("compile, check, small, time, steady or once");
  if (command == "check" || command == "small") std::printf("%d wrong\n", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
