// Compiles, checks and times the resident kernels by themselves.
//
//   resident_harness compile DIR [sm_90a]   every case, by NVRTC; needs no GPU; prints registers, spills
//   resident_harness widest DIR [sm_90a]    the same for the layers that need most registers
//   resident_harness check DIR [PROBLEMS]   random problems of every case against float64, outputs poisoned
//   resident_harness time DIR [FILTER]      docs/performance.md: graph of 20 blocks, median of 9
//   resident_harness once DIR FILTER        one launch of each case of the table, for profilers
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/resident/choose.h"
#include "cuda/resident/problem.h"
#include "reference.h"
#include "resident/arguments.h"

namespace {

using namespace warpweave::cuda::resident;
using warpweave::ResidentArguments;

void check(cudaError_t e, const char* what) {
  if (e != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(e));
}
#define CHECK(call) check(call, #call)

struct Case {
  std::string name;
  Problem problem;
  Variant variant;
};

Case make_case(std::string name, int dim, int heads, int head_dim, Variant v, Element e = Element::bf16) {
  Case c;
  c.name = std::move(name);
  c.problem.dim = dim, c.problem.heads = heads, c.problem.head_dim = head_dim, c.problem.element = e;
  c.problem.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  c.variant = v;
  finish(c.problem, c.variant);
  return c;
}

struct Shape {
  std::string name;
  int B, H, W;
  std::vector<std::string> cases;
};

#include "cases.inc"

// float32 <-> 16 bit on the host.
float widen(Element e, std::uint16_t v) {
  if (e == Element::bf16) return std::bit_cast<float>(static_cast<std::uint32_t>(v) << 16);
  const int exponent = v >> 10 & 31, fraction = v & 1023;
  float m = exponent == 31  ? (fraction ? NAN : INFINITY)
            : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                            : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return v & 0x8000 ? -m : m;
}

double round_to(Element e, double v) {  // to nearest even, for normal numbers and f16 subnormals
  if (v == 0 || !std::isfinite(v)) return v;
  int exponent;
  std::frexp(v, &exponent);
  int unit = exponent - (e == Element::bf16 ? 8 : 11);
  if (e == Element::f16) unit = std::max(unit, -24);
  return std::ldexp(std::nearbyint(std::ldexp(v, -unit)), unit);
}

std::uint16_t narrow(Element e, double v) {
  const double r = round_to(e, v);
  if (e == Element::bf16)
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(r)) >> 16);
  const std::uint16_t sign = std::signbit(r) ? 0x8000 : 0;
  const double m = std::fabs(r);
  if (m >= 65520) return sign | 0x7c00;
  if (m < std::ldexp(1.0, -14)) return sign | static_cast<std::uint16_t>(std::ldexp(m, 24));
  int exponent;
  const double f = std::frexp(m, &exponent);
  return static_cast<std::uint16_t>(sign | ((exponent + 14) << 10) |
                                    (static_cast<int>(std::ldexp(f, 11)) - 1024));
}

// A file name for a specialisation.
std::string key(const Problem& p, const Variant& v) {
  const std::string text = kernel_expression(p, v);
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char ch : text) hash = (hash ^ static_cast<unsigned char>(ch)) * 1099511628211u;
  char name[20];
  std::snprintf(name, sizeof(name), "%016llx", static_cast<unsigned long long>(hash));
  return name;
}

// ---- compiling
// -------------------------------------------------------------------------------------------------
int compile(const std::vector<Case>& cases, const std::string& dir, const std::string& arch,
            const std::string& filter) {
  void* lib = nullptr;
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so.13",
                           "/usr/local/cuda/lib/libnvrtc.so.13"})
    if (!lib) lib = dlopen(name, RTLD_NOW);
  if (!lib) throw std::runtime_error("libnvrtc was not found");
#define NVRTC(name) const auto name##_ = reinterpret_cast<decltype(&name)>(dlsym(lib, #name))
  NVRTC(nvrtcCreateProgram);
  NVRTC(nvrtcCompileProgram);
  NVRTC(nvrtcGetProgramLogSize);
  NVRTC(nvrtcGetProgramLog);
  NVRTC(nvrtcGetCUBINSize);
  NVRTC(nvrtcGetCUBIN);
  NVRTC(nvrtcDestroyProgram);
  NVRTC(nvrtcAddNameExpression);
  NVRTC(nvrtcGetLoweredName);
  int failed = 0;
  std::map<std::string, bool> done;
  for (const Case& c : cases) {
    const std::string k = key(c.problem, c.variant);
    if (done[k] || c.name.find(filter) == std::string::npos) continue;
    done[k] = true;
    const std::string text = "#include \"" + kernel_file(c.variant) + "\"\n",
                      expression = kernel_expression(c.problem, c.variant);
    {  // up to date?
      std::ifstream old(dir + "/" + k + "." + arch + ".src");
      std::stringstream s;
      s << old.rdbuf();
      if (s.str() == expression && !std::getenv("FORCE")) continue;
    }
    const auto start = std::chrono::steady_clock::now();
    nvrtcProgram program;
    nvrtcCreateProgram_(&program, text.c_str(), (k + ".cu").c_str(), 0, nullptr, nullptr);
    nvrtcAddNameExpression_(program, expression.c_str());
    const std::string a = "--gpu-architecture=" + arch, inc = std::string("-I") + WARPWEAVE_KERNELS;
    const char* options[] = {a.c_str(), inc.c_str(), "--std=c++20", "--ptxas-options=-v", "-lineinfo"};
    const auto result = nvrtcCompileProgram_(program, 5, options);
    std::size_t size = 0;
    nvrtcGetProgramLogSize_(program, &size);
    std::string log(size, 0);
    nvrtcGetProgramLog_(program, log.data());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (result != NVRTC_SUCCESS) {
      std::printf("FAILED %s\n%s\n%s\n", c.name.c_str(), expression.c_str(), log.substr(0, 3000).c_str());
      ++failed;
      continue;
    }
    nvrtcGetCUBINSize_(program, &size);
    std::vector<char> cubin(size);
    nvrtcGetCUBIN_(program, cubin.data());
    std::ofstream(dir + "/" + k + "." + arch + ".cubin", std::ios::binary)
        .write(cubin.data(), static_cast<long>(size));
    std::ofstream(dir + "/" + k + "." + arch + ".src") << expression;
    const char* lowered = nullptr;
    nvrtcGetLoweredName_(program, expression.c_str(), &lowered);
    std::ofstream(dir + "/" + k + "." + arch + ".name") << lowered;
    nvrtcDestroyProgram_(&program);
    const auto grab = [&](const char* what) {
      const auto at = log.find(what);
      if (at == std::string::npos) return std::string("?");
      auto from = log.find_last_of(" \n", at - 2);
      return log.substr(from + 1, at - from - 2);
    };
    std::printf("%-28s regs %4s  spill %4s/%4s  smem %6d  %.1f s%s\n", c.name.c_str(),
                grab("registers").c_str(), grab("bytes spill stores").c_str(),
                grab("bytes spill loads").c_str(), c.variant.shared_bytes, seconds,
                log.find("C75") != std::string::npos ? "  WARNING C75xx" : "");
    if (std::getenv("VERBOSE")) std::puts(log.c_str());
    std::fflush(stdout);
  }
  std::printf("compiled %zu, failed %d\n", done.size(), failed);
  return failed != 0;
}

// ---- running
// ---------------------------------------------------------------------------------------------------
struct Loaded {
  cudaKernel_t kernel;
};

cudaKernel_t load(const std::string& dir, const Case& c) {
  static std::map<std::string, cudaKernel_t> cache;
  const std::string k = key(c.problem, c.variant);
  if (const auto it = cache.find(k); it != cache.end()) return it->second;
  std::ifstream file(dir + "/" + k + ".sm_90a.cubin", std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  if (bytes.empty()) throw std::runtime_error("no cubin for " + c.name + " " + k);
  cudaLibrary_t library;
  CHECK(cudaLibraryLoadData(&library, bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  cudaKernel_t kernel;
  std::string name;
  std::ifstream(dir + "/" + k + ".sm_90a.name") >> name;
  CHECK(cudaLibraryGetKernel(&kernel, library, name.c_str()));
  CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, c.variant.shared_bytes));
  return cache[k] = kernel;
}

struct LayerWeights {
  std::vector<float> nw, nb, qw, qb, ow, ob;
  Tensors tensors() const {
    const auto p = [](const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); };
    return {p(nw), p(nb), p(qw), p(qb), p(ow), p(ob)};
  }
};

LayerWeights random_weights(const Problem& p, std::mt19937& r) {
  std::normal_distribution<float> n;
  LayerWeights w;
  const auto fill = [&](std::vector<float>& v, std::size_t count, float scale, float offset) {
    v.resize(count);
    for (float& f : v) f = offset + scale * n(r);
  };
  const int inner = p.heads * p.head_dim;
  if (p.norm != Norm::none) fill(w.nw, p.dim, 0.1f, 1);
  if (p.norm == Norm::layer) fill(w.nb, p.dim, 0.1f, 0);
  fill(w.qw, static_cast<std::size_t>(3) * inner * p.dim, 1 / std::sqrt(static_cast<float>(p.dim)), 0);
  if (p.qkv_bias) fill(w.qb, 3 * inner, 0.1f, 0);
  fill(w.ow, static_cast<std::size_t>(p.dim) * inner, 1 / std::sqrt(static_cast<float>(inner)), 0);
  if (p.out_bias) fill(w.ob, p.dim, 0.1f, 0);
  return w;
}

template <class T>
T* upload(const std::vector<T>& v) {
  void* p;
  CHECK(cudaMalloc(&p, std::max<std::size_t>(v.size() * sizeof(T), 16)));
  CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(p);
}

ResidentArguments arguments(const Problem& p, int B, int H, int W, bool row) {
  ResidentArguments a{};
  a.sample_cells = static_cast<long long>(H) * W;
  a.sequence_cells = row ? W : 1;
  a.token_cells = row ? 1 : W;
  a.per_sample = static_cast<unsigned>(row ? H : W);
  a.sequences = static_cast<unsigned>(B) * a.per_sample;
  a.length = row ? W : H;
  a.eps = static_cast<float>(p.eps);
  return a;
}

void launch(cudaKernel_t kernel, const Variant& v, ResidentArguments a, cudaStream_t stream, int sms,
            bool chained) {
  const unsigned blocks = (a.sequences + v.sequences_per_block - 1) / v.sequences_per_block;
  cudaLaunchConfig_t config{};
  config.gridDim = {v.kind == Variant::Kind::many ? std::min<unsigned>(blocks, sms) : blocks, 1, 1};
  config.blockDim = {static_cast<unsigned>(v.warps) * 32, 1, 1};
  config.dynamicSmemBytes = static_cast<std::size_t>(v.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = chained ? 1 : 0;
  void* args[] = {&a};
  CHECK(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), args));
}

int check_all(const std::string& dir, int problems, const std::string& filter) {
  std::mt19937 r(20261129);
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(r() % static_cast<unsigned>(hi - lo + 1));
  };
  int sms = 132, bad = 0, total = 0;
  std::map<std::string, int> options;
  for (const Case& c : all_cases()) {
    if (c.name.find(filter) == std::string::npos) continue;
    const Problem& p = c.problem;
    cudaKernel_t kernel;
    try {
      kernel = load(dir, c);
    } catch (const std::exception& e) {
      std::printf("%s\n", e.what());
      ++bad;
      continue;
    }
    double worst = 0, worst_torch = 0;
    int ran = 0, failed = 0;
    for (int i = 0; i < problems; ++i) {
      const bool row = r() & 1, in_place = r() & 1;
      const int L = i == 0   ? c.variant.slot
                    : i == 1 ? 1
                             : pick(std::max(1, c.variant.slot / 2), c.variant.slot);
      const int other = pick(1, 9), B = pick(1, 3);
      const int H = row ? other : L, W = row ? L : other;
      const LayerWeights w = random_weights(p, r);
      const auto blob = pack(p, w.tensors());
      const std::size_t cells = static_cast<std::size_t>(B) * H * W;
      std::normal_distribution<float> n;
      const float mean = i % 4 == 3 ? 8.0f : 0.0f;
      std::vector<std::uint16_t> x(cells * p.dim), y(cells * p.dim, 0xffff);
      for (auto& v : x) v = narrow(p.element, n(r) + mean);
      std::vector<unsigned char> mask(cells, 1);
      ResidentArguments a = arguments(p, B, H, W, row);
      std::vector<char> poisoned(cells, 0);
      if (p.mask) {
        const int kind = pick(0, 3);
        for (std::size_t k = 0; k < cells; ++k) mask[k] = kind == 0 ? 1 : r() % 4 != 0;
        if (kind == 1)
          std::fill(mask.begin(), mask.begin() + static_cast<long>(std::min<std::size_t>(cells, W)), 0);
        if (kind >= 2)  // NaN and Inf where masked must not be seen elsewhere
          for (std::size_t k = 0; k < cells; ++k)
            if (!mask[k] && r() % 2) {
              poisoned[k] = 1;
              for (int d = 0; d < p.dim; ++d)
                x[k * p.dim + d] =
                    p.element == Element::bf16 ? (r() % 2 ? 0x7fc0 : 0x7f80) : (r() % 2 ? 0x7e00 : 0x7c00);
            }
      }
      auto* dx = upload(x);
      auto* dy = in_place ? dx : upload(y);
      auto* dm = p.mask ? upload(mask) : nullptr;
      auto* dw = upload(blob);
      float* dr = p.rope_dims ? upload(rotation(p, L)) : nullptr;
      a.x = dx, a.y = dy, a.mask = dm, a.weights = dw, a.rotation = dr;
      launch(kernel, c.variant, a, nullptr, sms, false);
      CHECK(cudaGetLastError());
      CHECK(cudaDeviceSynchronize());
      CHECK(cudaMemcpy(y.data(), dy, y.size() * 2, cudaMemcpyDeviceToHost));
      // Every sequence against the reference, and against the reference rounded where PyTorch rounds.
      double error = 0, torch_error = 0, size = 0;
      bool nan = false;
      std::vector<double> sx(static_cast<std::size_t>(L) * p.dim), sy(sx.size()), st(sx.size());
      std::vector<unsigned char> sm(L);
      for (unsigned s = 0; s < a.sequences; ++s) {
        if (a.sequences > 6 && s % 4 != 0 && L * p.dim > 4000) continue;
        const long long first = s / a.per_sample * a.sample_cells + s % a.per_sample * a.sequence_cells;
        for (int t = 0; t < L; ++t) {
          const std::size_t cell = static_cast<std::size_t>(first + t * a.token_cells);
          sm[t] = mask[cell];
          for (int d = 0; d < p.dim; ++d)
            sx[static_cast<std::size_t>(t) * p.dim + d] = widen(p.element, x[cell * p.dim + d]);
        }
        attention_reference(p, w.tensors(), L, sx.data(), p.mask ? sm.data() : nullptr, sy.data(),
                            [](double v) { return v; });
        attention_reference(p, w.tensors(), L, sx.data(), p.mask ? sm.data() : nullptr, st.data(),
                            [&](double v) { return round_to(p.element, v); });
        for (int t = 0; t < L; ++t) {
          const std::size_t cell = static_cast<std::size_t>(first + t * a.token_cells);
          if (poisoned[cell]) continue;
          for (int d = 0; d < p.dim; ++d) {
            const std::size_t k = static_cast<std::size_t>(t) * p.dim + d;
            const double got = widen(p.element, y[cell * p.dim + d]),
                         delta = sy[k] - (p.residual ? sx[k] : 0);
            if (!std::isfinite(got)) nan = true;
            error += (got - sy[k]) * (got - sy[k]);
            torch_error += (st[k] - sy[k]) * (st[k] - sy[k]);
            size += delta * delta;
          }
        }
      }
      // Batch invariance and repeatability: the last sequence alone gives the same bits.
      bool same = true;
      if (!in_place && a.sequences > 1) {
        const std::size_t last = (a.sequences - 1) / a.per_sample * a.sample_cells +
                                 (a.sequences - 1) % a.per_sample * a.sequence_cells;
        ResidentArguments one = a;
        one.x = dx + last * p.dim, one.y = dy + last * p.dim, one.mask = dm ? dm + last : nullptr;
        one.sequences = one.per_sample = 1;
        std::vector<std::uint16_t> again(y.size());
        launch(kernel, c.variant, one, nullptr, sms, false);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(again.data(), dy, y.size() * 2, cudaMemcpyDeviceToHost));
        same = again == y;
      }
      if (dy != dx) cudaFree(dy);
      cudaFree(dx), cudaFree(dm), cudaFree(dw), cudaFree(dr);
      const double e = std::sqrt(error / std::max(size, 1e-30)),
                   e_torch = std::sqrt(torch_error / std::max(size, 1e-30));
      const double limit =
          std::max(p.element == Element::bf16 ? 8e-3 : 1e-3, (c.name.starts_with("hot") ? 2 : 1.1) * e_torch);
      ++ran;
      const bool ok = !nan && e <= limit && same;
      if (!ok) {
        if (++failed <= 3)
          std::printf("  WRONG %s: B %d H %d W %d %s %s: error %.2e (PyTorch %.2e)%s%s\n", c.name.c_str(), B,
                      H, W, row ? "row" : "column", in_place ? "in place" : "", e, e_torch,
                      nan ? ", not finite" : "", same ? "" : ", depends on the batch");
      } else {
        worst = std::max(worst, e), worst_torch = std::max(worst_torch, e_torch);
        for (const auto& [name, on] :
             std::initializer_list<std::pair<const char*, bool>>{{"row", row},
                                                                 {"column", !row},
                                                                 {"in place", in_place},
                                                                 {"mask", p.mask},
                                                                 {"causal", p.causal},
                                                                 {"rope", p.rope_dims > 0},
                                                                 {"layer norm", p.norm == Norm::layer},
                                                                 {"rms norm", p.norm == Norm::rms},
                                                                 {"no norm", p.norm == Norm::none},
                                                                 {"qkv bias", p.qkv_bias},
                                                                 {"no out bias", !p.out_bias},
                                                                 {"no residual", !p.residual},
                                                                 {"bf16", p.element == Element::bf16},
                                                                 {"f16", p.element == Element::f16},
                                                                 {"L % 16", L % 16 != 0}})
          options[name] += on;
      }
    }
    total += ran, bad += failed;
    std::printf("%-28s %3d ran, %d wrong, worst error %.2e (PyTorch %.2e)\n", c.name.c_str(), ran, failed,
                worst, worst_torch);
    std::fflush(stdout);
  }
  std::printf("right:");
  for (const auto& [name, count] : options) std::printf(" %s %d,", name.c_str(), count);
  std::printf("\n%d passed, %d failed\n", total - bad, bad);
  return bad != 0;
}

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

int main(int argc, char** argv) {
  try {
    const std::string verb = argc > 1 ? argv[1] : "", dir = argc > 2 ? argv[2] : ".",
                      third = argc > 3 ? argv[3] : "";
    if (verb == "compile")
      return compile(all_cases(), dir, third.empty() ? "sm_90a" : third, argc > 4 ? argv[4] : "");
    if (verb == "widest") {
      const std::string arch = third.empty() ? "sm_90a" : third;
      const int capability = std::atoi(arch.c_str() + 3);
      return compile(widest_cases(capability), dir, arch, "");
    }
    if (verb == "check")
      return check_all(dir, third.empty() ? 12 : std::atoi(argv[3]), argc > 4 ? argv[4] : "");
    if (verb == "time") return time_all(dir, third, false);
    if (verb == "once") return time_all(dir, third, true);
    std::fprintf(stderr, "usage: resident_harness compile|check|time|once DIR [..]\n");
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "resident_harness: %s\n", e.what());
    return 1;
  }
}
