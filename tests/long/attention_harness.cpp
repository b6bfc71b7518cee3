// Compiles, checks and times attention on compute capability 9.0 by itself, beside the kernel of other GPUs:
//
//   compile [WORD]    every kernel of the cases, into the cache; needs no GPU; prints registers and spills
//   check [WORD]      random problems against float64; outputs poisoned, NaN in one sequence
//   small             a few tiny problems, for compute-sanitizer
//   time [WORD]       attention of the shapes of docs/performance.md; microseconds a layer
//   once WORD KERNEL  one launch of a timed case, for profilers
//
// WORD is a part of the names of cases.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <regex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/composed/attention.h"
#include "cuda/long/attention_output.h"
#include "cuda/memory.h"
#include "warpweave/tensor.h"

namespace {

using namespace warpweave;
using namespace warpweave::cuda;
using kernels::AttentionParams;
using kernels::Sequences;

#define CHECK_CUDA(call) check(call, #call)

// Attention of a layer on a grid [batch, rows, columns].
struct Case {
  std::string name;
  int heads, head, batch, rows, columns;
  bool along_rows, causal = false;
  Precision precision = Precision::bf16;
  double spread = 1;    // of q and k
  bool folded = false;  // q comes multiplied by scale log2(e)
  int dim = 0;          // of the output projection, where the kernel ends with it

  std::int64_t length() const { return along_rows ? columns : rows; }
  std::int64_t sequences() const { return tokens() / length(); }
  std::int64_t tokens() const { return std::int64_t{batch} * rows * columns; }
  std::int64_t width() const { return std::int64_t{heads} * head; }
  AttentionShape shape() const { return {heads, head, length(), causal}; }
  AttentionParams params(const void* qkv, void* o) const {
    AttentionParams p{};
    p.qkv = qkv, p.o = o;
    p.tokens = along_rows ? Sequences{rows, std::int64_t{rows} * columns, columns, 1}
                          : Sequences{columns, std::int64_t{rows} * columns, 1, columns};
    p.mask_cells = p.tokens;
    p.sequences = sequences(), p.length = length(), p.heads = heads;
    p.scale = folded ? 0.69314718f : static_cast<float>(scale());
    return p;
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head)); }
  std::int64_t token(std::int64_t sequence, std::int64_t l) const {
    const Sequences t = params(nullptr, nullptr).tokens;
    return sequence / t.inner * t.outer_stride + sequence % t.inner * t.inner_stride + l * t.step;
  }
};

std::string words(const LongAttentionPlan& p) {
  return "g" + std::to_string(p.groups) + "k" + std::to_string(p.keys) + "s" + std::to_string(p.stages) +
         "b" + std::to_string(p.blocks) + (p.folded ? "f" : "") + (p.short_start ? "e" : "") +
         (p.panels ? "p" + std::to_string(p.panels) : "");
}

// What is tried.
std::vector<LongAttentionPlan> plans(const Case& c) {
  std::vector<LongAttentionPlan> list;
  const int panels = c.dim > 0 ? c.heads * c.head / 64 : 0;
  const auto add = [&](int groups, int stages, int blocks) {
    LongAttentionPlan plan{c.head, groups, 64, stages, blocks, panels, c.folded};
    if (blocks * (plan.shared_bytes() + 1024) > 228 * 1024) return;
    list.push_back(plan);
    plan.short_start = panels == 0 && starts_short(c.length(), c.causal, plan.keys);
    if (plan.short_start) list.push_back(plan);
  };
  if (panels > 2) {
    add(2, 4, 2), add(3, 6, 1), add(4, 7, 1);
  } else if (c.head <= 32) {
    add(4, 6, 1), add(3, 6, 1), add(2, 4, 2);
  } else if (c.head <= 64) {
    add(4, 4, 1), add(3, 5, 1), add(1, 2, 3);
  } else {
    add(2, 3, 1);
  }
  return list;
}

std::vector<Case> checked() {
  std::vector<Case> list;
  for (const int length : {1, 7, 16, 63, 64, 65, 128, 129, 200, 577})
    list.push_back({"odd", 2, 32, 2, 3, length, true});
  list.push_back({"pair", 4, 32, 1, 3, 512, true});
  list.push_back({"pair columns", 4, 32, 1, 1024, 3, false});
  list.push_back({"msa", 8, 32, 1, 256, 5, false});
  list.push_back({"audio", 8, 48, 1, 800, 3, false});
  list.push_back({"audio rows", 8, 48, 1, 7, 60, true});
  list.push_back({"packed", 3, 48, 2, 5, 130, true});
  list.push_back({"msa768", 12, 64, 1, 3, 512, true});
  list.push_back({"msa768 columns", 12, 64, 2, 128, 3, false});
  list.push_back({"video", 12, 64, 1, 2, 1568, true});
  for (const int head : {48, 64})
    for (const int length : {65, 80, 96}) list.push_back({"short start", 2, head, 1, 3, length, true});
  list.push_back({"narrow", 3, 16, 2, 3, 150, true});
  for (const int head : {80, 96, 112, 128}) list.push_back({"wide", 2, head, 2, 150, 2, false});
  const std::size_t plain = list.size();
  for (std::size_t i = 0; i < plain; ++i) {
    Case c = list[i];
    c.causal = true, c.name += " causal";
    list.push_back(c);
    c = list[i];
    c.precision = Precision::fp16, c.name += " fp16";
    list.push_back(c);
    if (i % 3 == 0) c.folded = true, c.name += " folded", list.push_back(c);
    c = list[i];
    c.folded = true, c.name += " folded";
    list.push_back(c);
  }
  for (const Precision p : {Precision::bf16, Precision::fp16}) {
    for (const bool folded : {false, true}) {
      for (const int dim : {128, 72, 200}) {
        list.push_back({"output", 4, 32, 2, 3, 300, true, false, p, 1, folded, dim});
        list.push_back({"output columns", 8, 32, 1, 513, 3, false, dim == 72, p, 1, folded, dim});
      }
      // several items a block, and blocks a multiprocessor
      if (folded) list.push_back({"many output", 8, 32, 1, 400, 128, true, false, p, 1, folded, 64});
      for (const int length : {40, 130})  // several sequences in an item
        list.push_back({"output packed", 4, 32, 1, 7, length, true, length == 130, p, 1, folded, 72});
      list.push_back({"output steep", 4, 32, 1, 3, 300, true, false, p, 30, folded, 128});
    }
    // the maximum has to follow
    list.push_back({"steep", 4, 32, 1, 3, 300, true, false, p, 30});
    list.push_back({"steep folded", 4, 32, 1, 3, 300, true, false, p, 30, true});
    list.push_back({"steep causal", 2, 64, 1, 200, 3, false, true, p, 30});
  }
  return list;
}

std::vector<Case> small() {
  return {{"small", 2, 32, 1, 2, 150, true},
          {"small columns causal", 2, 48, 1, 130, 2, false, true},
          {"small steep", 1, 64, 1, 2, 150, true, false, Precision::fp16, 30},
          {"small wide", 1, 112, 1, 2, 70, true},
          {"small folded", 2, 32, 1, 2, 150, true, false, Precision::bf16, 1, true},
          {"small steep folded", 2, 32, 1, 2, 150, true, true, Precision::bf16, 40, true},
          {"small output", 2, 32, 1, 2, 150, true, false, Precision::bf16, 1, true, 72},
          {"small output causal", 4, 32, 1, 130, 2, false, true, Precision::fp16, 30, false, 136},
          {"small packed", 2, 48, 1, 5, 40, true, false, Precision::bf16, 1, true},
          {"small steep output", 2, 32, 1, 130, 2, false, false, Precision::fp16, 30, true, 64}};
}

std::vector<Case> timed() {
  std::vector<Case> list = {
      {"pair256", 4, 32, 1, 256, 256, true},          {"pair256 columns", 4, 32, 1, 256, 256, false},
      {"pair512", 4, 32, 1, 512, 512, true},          {"pair512 columns", 4, 32, 1, 512, 512, false},
      {"pair1024", 4, 32, 1, 1024, 1024, true},       {"msa", 8, 32, 1, 256, 384, true},
      {"msa columns", 8, 32, 1, 256, 384, false},     {"audio", 8, 48, 1, 800, 60, true},
      {"audio columns", 8, 48, 1, 800, 60, false},    {"msa768", 12, 64, 1, 128, 512, true},
      {"msa768 columns", 12, 64, 1, 128, 512, false}, {"video", 12, 64, 2, 16, 1568, true},
      {"video columns", 12, 64, 2, 16, 1568, false}};
  for (const int length : {64, 128, 192}) list.push_back({"middle", 4, 32, 1, 1024, length, true});
  for (const int length : {40, 96, 192}) list.push_back({"middle", 8, 64, 1, 512, length, true});
  for (std::size_t i = 0, plain = list.size(); i < plain; ++i) {
    Case c = list[i];
    c.folded = true;
    list.push_back(c);
    if (c.head == 32) c.name += " output", c.dim = static_cast<int>(c.width()), list.push_back(c);
  }
  return list;
}

// Weights of the output projection, and what is added.
struct Output {
  std::vector<float> weight, bias, x;  // as the device has them
  Tensor x_bits;
  explicit Output(const Case& c) {
    std::mt19937 engine(17);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& v, std::int64_t count, double size) {
      v.resize(static_cast<std::size_t>(count));
      for (float& e : v) e = normal(engine) * static_cast<float>(size);
    };
    const auto rounded = [&](std::vector<float>& v) {
      Tensor t = Tensor::from({static_cast<std::int64_t>(v.size())}, v).to(storage_type(c.precision));
      const Tensor back = t.to(DType::f32);
      v.assign(back.values<float>().begin(), back.values<float>().end());
      return t;
    };
    fill(weight, c.dim * c.width(), 1 / std::sqrt(static_cast<double>(c.width())));
    fill(bias, c.dim, 1);
    fill(x, c.tokens() * c.dim, 0.1);
    rounded(weight);
    x_bits = rounded(x);
  }
};

// The kernels of a case: and the one of other GPUs.
struct Candidate {
  std::string name;
  std::unique_ptr<const AttentionOperation> operation;
};
// In place on params.o.
class WithOutput final : public AttentionOperation {
 public:
  WithOutput(const LongAttentionPlan& plan, const Case& c, const Output& output, const GpuDevice& device)
      : attention_(plan, c.causal, c.precision, device),
        weights_(c.heads, c.head, output.weight, output.bias, c.precision) {}
  void enqueue(cudaStream_t stream, const AttentionParams& p) const override {
    attention_.enqueue(stream, p, weights_.params(p.o, p.o));
  }

 private:
  LongAttention attention_;
  long_sequences::AttentionOutputWeights weights_;
};
std::vector<Candidate> candidates(const Case& c, const GpuDevice& device, const Output* output = nullptr) {
  std::vector<Candidate> list;
  for (const auto& plan : plans(c)) {
    if (output)
      list.push_back({words(plan), std::make_unique<WithOutput>(plan, c, *output, device)});
    else
      list.push_back({words(plan), make_long_attention(plan, c.causal, c.precision, device)});
  }
  if (!c.folded && !output)
    list.push_back({"other GPUs'", make_any_attention(c.shape(), c.precision, device)});
  return list;
}

// Values of the operands as the device has them, and the bits.
struct Data {
  std::vector<float> values;
  Tensor bits;
};
Data random_qkv(const Case& c, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  const std::int64_t width = 3 * c.width();
  Tensor x(DType::f32, {c.tokens() * width});
  auto v = x.values<float>();
  for (std::size_t i = 0; i < v.size(); ++i) {
    const std::int64_t part = static_cast<std::int64_t>(i) % width / c.width();
    v[i] = normal(engine) * static_cast<float>(part < 2 ? c.spread : 1);
    if (part == 0 && c.folded) v[i] *= static_cast<float>(c.scale() * 1.4426950408889634);
  }
  Data d{{}, x.to(storage_type(c.precision))};
  const Tensor back = d.bits.to(DType::f32);
  const auto b = back.values<float>();
  d.values.assign(b.begin(), b.end());
  return d;
}

// One query's result for one head, in float64.
std::vector<double> expected(const Case& c, const std::vector<float>& qkv, std::int64_t sequence, int head,
                             std::int64_t query) {
  const auto row = [&](int part, std::int64_t l) {
    return qkv.data() + c.token(sequence, l) * 3 * c.width() + (part * c.heads + head) * c.head;
  };
  const std::int64_t end = c.causal ? query + 1 : c.length();
  const float scale = c.params(nullptr, nullptr).scale;
  std::vector<double> s(end);
  for (std::int64_t k = 0; k < end; ++k) {
    double sum = 0;
    for (int i = 0; i < c.head; ++i) sum += static_cast<double>(row(0, query)[i]) * row(1, k)[i];
    s[k] = sum * scale;
  }
  const double top = *std::max_element(s.begin(), s.end());
  double total = 0;
  std::vector<double> o(c.head, 0.0);
  for (std::int64_t k = 0; k < end; ++k) {
    const double w = std::exp(s[k] - top);
    total += w;
    for (int i = 0; i < c.head; ++i) o[i] += w * row(2, k)[i];
  }
  for (double& v : o) v /= total;
  return o;
}

// What is compared of a query: the results of its first and last head, or the update of its cell.
std::vector<double> expected(const Case& c, const std::vector<float>& qkv, const Output* output,
                             std::int64_t sequence, std::int64_t query) {
  std::vector<double> o;
  for (int h = 0; h < c.heads; h += output ? 1 : std::max(1, c.heads - 1)) {
    const auto one = expected(c, qkv, sequence, h, query);
    o.insert(o.end(), one.begin(), one.end());
  }
  if (!output) return o;
  std::vector<double> y(static_cast<std::size_t>(c.dim));
  for (int n = 0; n < c.dim; ++n) {
    y[n] = output->bias[n];
    for (std::size_t k = 0; k < o.size(); ++k) y[n] += o[k] * output->weight[n * o.size() + k];
  }
  return y;
}
std::vector<double> seen(const Case& c, std::span<const float> y, const Output* output, std::int64_t token) {
  std::vector<double> v;
  if (output) {
    for (int n = 0; n < c.dim; ++n) v.push_back(double{y[token * c.dim + n]} - output->x[token * c.dim + n]);
  } else {
    for (int h = 0; h < c.heads; h += std::max(1, c.heads - 1))
      for (int i = 0; i < c.head; ++i) v.push_back(y[token * c.width() + h * c.head + i]);
  }
  return v;
}

// Returns the number of failures.
int check_case(const Case& c, const GpuDevice& device, std::uint32_t seed) {
  Data d = random_qkv(c, seed);
  const std::int64_t broken = c.sequences() > 1 ? 1 : -1;  // a sequence full of NaN, which must stay alone
  auto bits = d.bits.values<std::uint16_t>();
  for (std::int64_t l = 0; broken >= 0 && l < c.length(); ++l) {
    std::fill_n(bits.begin() + c.token(broken, l) * 3 * c.width(), 3 * c.width(), std::uint16_t{0x7fff});
  }
  const DeviceBuffer qkv =
      upload_bytes({static_cast<const std::byte*>(d.bits.data()), d.bits.bytes()}, "the harness's input");
  std::optional<Output> with_output;
  if (c.dim > 0) with_output.emplace(c);
  const Output* const output = with_output ? &*with_output : nullptr;
  const std::int64_t width = output ? c.dim : c.width();
  const std::size_t bytes = static_cast<std::size_t>(c.tokens() * width) * 2;
  const DeviceBuffer o(bytes, "the harness's output");
  int failures = 0;
  for (const auto& [name, operation] : candidates(c, device, output)) {
    if (output)
      CHECK_CUDA(cudaMemcpy(o.data(), output->x_bits.data(), bytes, cudaMemcpyHostToDevice));
    else
      CHECK_CUDA(cudaMemset(o.data(), 0xff, bytes));
    CHECK_CUDA(cudaDeviceSynchronize());
    operation->enqueue(nullptr, c.params(qkv.data(), o.data()));
    Tensor got(storage_type(c.precision), {c.tokens() * width});
    CHECK_CUDA(cudaMemcpy(got.data(), o.data(), bytes, cudaMemcpyDeviceToHost));
    CHECK_CUDA(cudaDeviceSynchronize());
    const Tensor wide = got.to(DType::f32);
    const auto y = wide.values<float>();
    int wrong_kind = 0;
    for (std::int64_t s = 0; s < c.sequences(); ++s) {
      for (std::int64_t l = 0; l < c.length(); ++l) {
        for (std::int64_t i = 0; i < width; ++i)
          wrong_kind += std::isfinite(y[c.token(s, l) * width + i]) == (s == broken);
      }
    }
    double difference = 0, size = 0, worst = 0;
    const std::int64_t stride = std::max<std::int64_t>(1, c.length() / 37);
    for (std::int64_t s = 0; s < c.sequences();
         s += std::max<std::int64_t>(2, c.sequences() / (c.sequences() >= 400 ? 20 : 2))) {
      for (std::int64_t query = 0; query < c.length();
           query +=
           query + stride < c.length() || query + 1 == c.length() ? stride : c.length() - 1 - query) {
        const auto e = expected(c, d.values, output, s, query), v = seen(c, y, output, c.token(s, query));
        for (std::size_t i = 0; i < e.size(); ++i) {
          difference += (v[i] - e[i]) * (v[i] - e[i]), size += e[i] * e[i];
          worst = std::max(worst, std::fabs(v[i] - e[i]));
        }
      }
    }
    const double error = std::sqrt(difference / size);
    const bool good = wrong_kind == 0 && error < (c.precision == Precision::bf16 ? 6e-3 : 8e-4);
    failures += !good;
    std::printf("%-22s %dx%-3d L %-4lld %-12s error %.2e, largest %.2e%s\n", c.name.c_str(), c.heads, c.head,
                static_cast<long long>(c.length()), name.c_str(), error, worst,
                good         ? ""
                : wrong_kind ? "  WRONG (not finite, or not alone)"
                             : "  WRONG");
    std::fflush(stdout);
  }
  return failures;
}

// Large random buffers by copies of one part.
DeviceBuffer filled(std::size_t bytes, double size = 1) {
  std::mt19937 engine(5);
  std::normal_distribution<float> normal;
  Tensor x(DType::f32, {3 << 20});
  for (float& v : x.values<float>()) v = normal(engine) * static_cast<float>(size);
  const Data d{{}, x.to(DType::bf16)};
  DeviceBuffer b(bytes, "the harness's input");
  for (std::size_t at = 0; at < bytes; at += d.bits.bytes())
    CHECK_CUDA(cudaMemcpy(b.data() + at, d.bits.data(), std::min(d.bits.bytes(), bytes - at),
                          cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaDeviceSynchronize());
  return b;
}

void time_case(const Case& c, const GpuDevice& device, const std::string& only) {
  const std::size_t bytes = static_cast<std::size_t>(c.tokens() * c.width()) * 2;
  const double size = c.folded ? std::sqrt(c.scale() * 1.4426950408889634) : 1;  // the same scores
  const DeviceBuffer qkv = filled(3 * bytes, size), o = filled(bytes);
  std::optional<Output> output;
  if (c.dim > 0) {
    Case small = c;
    small.rows = small.columns = 1;
    output.emplace(small);
  }
  const double pairs = static_cast<double>(c.tokens()) * static_cast<double>(c.length()) * c.heads;
  cudaStream_t stream;
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  for (const auto& [name, operation] : candidates(c, device, output ? &*output : nullptr)) {
    if (!only.empty() && name != only) continue;
    const auto launch = [&] { operation->enqueue(stream, c.params(qkv.data(), o.data())); };
    if (!only.empty()) {
      launch();
      CHECK_CUDA(cudaStreamSynchronize(stream));
      continue;
    }
    const int repeats = pairs > 2e9 ? 3 : 10;
    std::vector<float> times;
    for (int i = 0; i < 7; ++i) {
      CHECK_CUDA(cudaEventRecord(begin, stream));
      for (int r = 0; r < (i ? repeats : 1); ++r) launch();
      CHECK_CUDA(cudaEventRecord(end, stream));
      CHECK_CUDA(cudaStreamSynchronize(stream));
      float ms = 0;
      CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
      if (i) times.push_back(ms * 1000 / static_cast<float>(repeats));
    }
    std::sort(times.begin(), times.end());
    const double us = times[times.size() / 2];
    std::printf("%-16s %dx%d L %-5lld %-12s %8.1f us  %6.1f TFLOP/s  %5.2f T exp/s\n", c.name.c_str(),
                c.heads, c.head, static_cast<long long>(c.length()), name.c_str(), us,
                pairs * c.head * 4 / us / 1e6, pairs / us / 1e6);
    std::fflush(stdout);
  }
  cudaStreamDestroy(stream);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

int compile(const std::string& word) {
  std::vector<KernelSpec> specs;
  for (const auto& list : {checked(), small(), timed()}) {
    for (const Case& c : list) {
      if (c.name.find(word) == std::string::npos) continue;
      for (const auto& plan : plans(c)) specs.push_back(long_attention_kernel(plan, c.causal, c.precision));
      for (const auto& spec : attention_kernels(c.shape(), {c.precision, 90, 227 * 1024}))
        specs.push_back(spec);
    }
  }
  std::sort(specs.begin(), specs.end());
  specs.erase(std::unique(specs.begin(), specs.end()), specs.end());
  const auto compiled = Compiler().compile(specs, 90);
  int bad = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].file != "long/attention.cuh") continue;
    std::smatch registers, spills;
    const std::string& log = compiled[i].log;
    std::regex_search(log, registers, std::regex("Used (\\d+) registers"));
    const bool spilled = std::regex_search(log, spills, std::regex("([1-9]\\d*) bytes spill"));
    const bool serial = log.find("C75") != std::string::npos;
    bad += spilled || serial;
    std::printf("%s: %s registers%s%s\n", specs[i].expression.c_str(), registers[1].str().c_str(),
                spilled ? (", " + spills[1].str() + " bytes of spills").c_str() : "",
                serial ? ", wgmma serialised" : "");
  }
  std::printf("%zu kernels, %d with spills or serialised products\n", specs.size(), bad);
  return bad ? 1 : 0;
}

int check(std::vector<Case> list, const std::string& word) {
  const GpuDevice device(0);
  int failures = 0, count = 0;
  for (const Case& c : list) {
    if (c.name.find(word) == std::string::npos) continue;
    failures += check_case(c, device, 100 + static_cast<std::uint32_t>(count++));
  }
  std::printf("%d cases, %d wrong\n", count, failures);
  return failures ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "", word = argc > 2 ? argv[2] : "";
  try {
    if (mode == "compile") return compile(word);
    if (mode == "check") return check(checked(), word);
    if (mode == "small") return check(small(), word);
    if (mode == "time" || mode == "once") {
      const GpuDevice device(0);
      for (const Case& c : timed()) {
        if (c.name.find(word) != std::string::npos)
          time_case(c, device, mode == "once" && argc > 3 ? argv[3] : "");
      }
      return 0;
    }
    std::printf("compile | check [WORD] | small | time [WORD] | once WORD KERNEL\n");
    return 2;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
