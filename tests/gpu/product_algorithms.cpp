// warpweave_product_algorithms [--steady SECONDS] [--only WORD] [WORKSPACE_MIB...]     needs a GPU; default 0
// and 32
//
// How much is left on the table by taking cuBLASLt's first suggestion: for the 16-bit products of the large
// shapes, every algorithm that its heuristic names (for the number of tokens at hand, and for the number that
// the engine asks about) is timed, and its result compared with that of the first, bit by bit. None splits
// the sum over k. With --steady each also runs for so long, and its time and energy under the GPU's power
// limit are printed (steady.h). Printed of each: time, place in the lists, algorithm, tile, stages, cluster,
// custom option, kernel. y [tokens, n] = a [tokens, k] w[n, k]^T, or y += a w^T + bias.
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/product_tiles.h"
#include "gpu/steady.h"

namespace {

struct Problem {
  const char* name;
  std::int64_t tokens, sample_tokens, n, k;
  bool output;  // with bias and residual
};
constexpr Problem kProblems[] = {
    {"msa768 qkv", 65536, 65536, 2304, 768, false},  {"msa768 out", 65536, 65536, 768, 768, true},
    {"video qkv", 50176, 25088, 2304, 768, false},   {"video out", 50176, 25088, 768, 768, true},
    {"audio qkv", 48000, 48000, 1152, 384, false},   {"audio out", 48000, 48000, 384, 384, true},
    {"msa qkv", 98304, 98304, 768, 256, false},      {"msa out", 98304, 98304, 256, 256, true},
    {"few qkv", 4096, 4096, 2304, 768, false},       {"few out", 4096, 4096, 768, 768, true},
    {"few narrow", 4096, 4096, 768, 256, false},     {"denoiser up", 16384, 16384, 384, 128, false},
    {"denoiser down", 16384, 16384, 128, 384, true}, {"batched up", 262144, 16384, 384, 128, false},
    {"wide up", 32768, 32768, 3072, 768, false},     {"wide down", 32768, 32768, 768, 3072, true},
    {"batched qkv", 65536, 8192, 2304, 768, false},  {"batched out", 65536, 8192, 768, 768, true},
    {"small qkv", 65536, 65536, 192, 64, false},     {"small out", 65536, 65536, 64, 64, true},
};
constexpr double kPeak = 787e12;  // flops per second, bf16
constexpr int kAsked = 32, kAskedByEngine = 8, kRuns = 10, kRounds = 3;

void require(int status, const char* what) {
  if (status) throw std::runtime_error(std::string(what) + ": status " + std::to_string(status));
}
#define REQUIRE(call) require(static_cast<int>(call), #call)

template <class Function>
Function* find(const char* name) {
  static void* const library = [] {
    void* handle = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    return handle ? handle : dlopen("/usr/local/cuda/lib64/libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
  }();
  void* address = library ? dlsym(library, name) : nullptr;
  if (!address) throw std::runtime_error(std::string("cuBLASLt has no ") + name);
  return reinterpret_cast<Function*>(address);
}
#define LT(name) find<decltype(name)>(#name)

template <class Function>
Function* driver(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result{};
  REQUIRE(cudaGetDriverEntryPointByVersion(name, &address, 12040, cudaEnableDefault, &result));
  if (!address) throw std::runtime_error(std::string("the driver has no ") + name);
  return reinterpret_cast<Function*>(address);
}

int multiprocessors() {
  int device = 0, count = 0;
  REQUIRE(cudaGetDevice(&device));
  REQUIRE(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

// The engine asks about this many tokens (cuda/blas.cpp).
std::int64_t typical(std::int64_t tokens) {
  return std::clamp<std::int64_t>(
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(tokens))), 4096, 65536);
}

struct Found {
  cublasLtMatmulAlgo_t algorithm;
  std::size_t workspace;
  int rank[2] = {-1, -1};  // in the heuristic's list for the true and for the typical number of tokens
  double microseconds = 0;
  bool same_bits = false;
  warpweave::test::Steady steady{};
};

class Product {
 public:
  Product(cublasLtHandle_t handle, const Problem& p, void* a, void* y, void* w, void* bias, void* workspace)
      : handle_(handle), p_(p), layouts_(p, p.tokens), a_(a), y_(y), w_(w), workspace_(workspace) {
    REQUIRE(LT(cublasLtMatmulDescCreate)(&descriptor_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.output ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
    if (p.output) {
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(CUDA_R_16BF));
    }
  }

  std::vector<Found> suggestions(std::size_t workspace) const {
    std::vector<Found> list;
    for (int which = 0; which < 2; ++which) {
      cublasLtMatmulPreference_t preference = nullptr;
      REQUIRE(LT(cublasLtMatmulPreferenceCreate)(&preference));
      const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
        REQUIRE(LT(cublasLtMatmulPreferenceSetAttribute)(preference, attribute, &value, sizeof value));
      };
      prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
      prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
             static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
      for (const auto each :
           {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
        prefer(each, std::uint32_t{16});
      }
      const Layouts l(p_, which ? typical(p_.sample_tokens) : p_.tokens);
      std::vector<cublasLtMatmulHeuristicResult_t> results(kAsked);
      int count = 0;
      LT(cublasLtMatmulAlgoGetHeuristic)
      (handle_, descriptor_, l.w, l.a, l.y, l.y, preference, kAsked, results.data(), &count);
      for (int i = 0; i < count; ++i) {
        const auto& r = results[i];
        if (r.state != CUBLAS_STATUS_SUCCESS || number(r.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1) continue;
        auto it = std::find_if(list.begin(), list.end(), [&](const Found& f) {
          return std::memcmp(&f.algorithm, &r.algo, sizeof r.algo) == 0;
        });
        if (it == list.end()) it = list.insert(it, Found{r.algo, r.workspaceSize});
        it->rank[which] = i;
      }
      LT(cublasLtMatmulPreferenceDestroy)(preference);
    }
    return list;
  }

  int run(const cublasLtMatmulAlgo_t& algorithm, std::size_t workspace, cudaStream_t stream = nullptr) const {
    const float one = 1, add = p_.output ? 1 : 0;
    return LT(cublasLtMatmul)(handle_, descriptor_, &one, w_, layouts_.w, a_, layouts_.a, &add, y_,
                              layouts_.y, y_, layouts_.y, &algorithm, workspace_, workspace, stream);
  }

  // The name of the kernel that it launches.
  std::string kernel(const cublasLtMatmulAlgo_t& algorithm, std::size_t workspace) const {
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    const int status = run(algorithm, workspace, stream);
    REQUIRE(cudaStreamEndCapture(stream, &graph));
    std::size_t count = 8;
    cudaGraphNode_t nodes[8];
    REQUIRE(cudaGraphGetNodes(graph, nodes, &count));
    std::string names;
    for (std::size_t i = 0; status == 0 && i < count; ++i) {
      CUDA_KERNEL_NODE_PARAMS params{};
      const char* name = nullptr;
      if (driver<decltype(cuGraphKernelNodeGetParams)>("cuGraphKernelNodeGetParams")(nodes[i], &params))
        continue;
      if (params.func) driver<decltype(cuFuncGetName)>("cuFuncGetName")(&name, params.func);
      if (!name && params.kern) driver<decltype(cuKernelGetName)>("cuKernelGetName")(&name, params.kern);
      names += std::string(" ") + (name ? name : "?");
    }
    REQUIRE(cudaGraphDestroy(graph));
    REQUIRE(cudaStreamDestroy(stream));
    return names;
  }

  static int number(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
    std::int32_t value = 0;
    std::size_t written = 0;
    const std::size_t size =
        attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID
            ? 2
            : 4;
    return LT(cublasLtMatmulAlgoConfigGetAttribute)(&algorithm, attribute, &value, size, &written) ? -1
                                                                                                   : value;
  }

 private:
  struct Layouts {
    cublasLtMatrixLayout_t w, a, y;
    Layouts(const Problem& p, std::int64_t tokens) {
      const auto k = static_cast<std::uint64_t>(p.k), n = static_cast<std::uint64_t>(p.n),
                 t = static_cast<std::uint64_t>(tokens);
      REQUIRE(LT(cublasLtMatrixLayoutCreate)(&w, CUDA_R_16BF, k, n, p.k));
      REQUIRE(LT(cublasLtMatrixLayoutCreate)(&a, CUDA_R_16BF, k, t, p.k));
      REQUIRE(LT(cublasLtMatrixLayoutCreate)(&y, CUDA_R_16BF, n, t, p.n));
    }
  };
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    REQUIRE(LT(cublasLtMatmulDescSetAttribute)(descriptor_, attribute, &value, sizeof value));
  }

  cublasLtHandle_t handle_;
  const Problem& p_;
  Layouts layouts_;
  void *a_, *y_, *w_, *workspace_;
  cublasLtMatmulDesc_t descriptor_ = nullptr;
};

// Random numbers of about 1 in bf16; the same every time.
std::vector<std::uint16_t> values(std::size_t count, std::uint32_t seed) {
  std::vector<std::uint16_t> list(count);
  for (auto& v : list) {
    seed = seed * 1664525u + 1013904223u;
    const float f = static_cast<float>(static_cast<std::int32_t>(seed)) * 4.6566e-10f;
    v = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(f) >> 16);
  }
  return list;
}

void measure(cublasLtHandle_t handle, const Problem& p, const std::vector<std::size_t>& workspaces,
             double seconds) {
  const auto count_a = static_cast<std::size_t>(p.tokens * p.k),
             count_y = static_cast<std::size_t>(p.tokens * p.n);
  std::uint16_t *a = nullptr, *y = nullptr, *w = nullptr, *bias = nullptr;
  void* workspace = nullptr;
  const std::size_t most =
      std::max<std::size_t>(*std::max_element(workspaces.begin(), workspaces.end()), 256);
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&a), count_a * 2));
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&y), count_y * 2));
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&w), static_cast<std::size_t>(p.n * p.k) * 2));
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&bias), static_cast<std::size_t>(p.n) * 2));
  REQUIRE(cudaMalloc(&workspace, most));
  const auto block = values(std::size_t{1} << 20, 1);
  for (std::size_t at = 0; at < count_a; at += block.size()) {
    REQUIRE(
        cudaMemcpy(a + at, block.data(), std::min(block.size(), count_a - at) * 2, cudaMemcpyHostToDevice));
  }
  REQUIRE(cudaMemcpy(w, values(static_cast<std::size_t>(p.n * p.k), 2).data(),
                     static_cast<std::size_t>(p.n * p.k) * 2, cudaMemcpyHostToDevice));
  REQUIRE(cudaMemcpy(bias, block.data(), static_cast<std::size_t>(p.n) * 2, cudaMemcpyHostToDevice));
  REQUIRE(cudaDeviceSynchronize());
  cudaEvent_t begin = nullptr, end = nullptr;
  REQUIRE(cudaEventCreate(&begin));
  REQUIRE(cudaEventCreate(&end));

  const Product product(handle, p, a, y, w, bias, workspace);
  const double limit = 2.0 * static_cast<double>(p.tokens * p.n * p.k) / kPeak * 1e6;
  const std::size_t looked_at = std::min<std::size_t>(count_y, std::size_t{1} << 21);
  for (const std::size_t bytes : workspaces) {
    auto list = product.suggestions(bytes);
    std::vector<std::uint16_t> first, now(looked_at);
    for (Found& f : list) {
      REQUIRE(cudaMemset(y, 0, count_y * 2));
      if (product.run(f.algorithm, bytes) || cudaDeviceSynchronize() != cudaSuccess) {
        std::printf("an algorithm failed\n");
        f.microseconds = 1e9;
        continue;
      }
      REQUIRE(cudaMemcpy(now.data(), y, looked_at * 2, cudaMemcpyDeviceToHost));
      if (first.empty()) first = now;
      f.same_bits = first == now;
    }
    std::vector<std::vector<double>> times(list.size());
    for (int round = 0; round < kRounds; ++round) {  // in turns
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (list[i].microseconds > 0) continue;
        REQUIRE(product.run(list[i].algorithm, bytes));
        REQUIRE(cudaEventRecord(begin, nullptr));
        for (int run = 0; run < kRuns; ++run) REQUIRE(product.run(list[i].algorithm, bytes));
        REQUIRE(cudaEventRecord(end, nullptr));
        REQUIRE(cudaEventSynchronize(end));
        float ms = 0;
        REQUIRE(cudaEventElapsedTime(&ms, begin, end));
        times[i].push_back(ms * 1e3 / kRuns);
      }
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (times[i].empty()) continue;
      std::sort(times[i].begin(), times[i].end());
      list[i].microseconds = times[i][times[i].size() / 2];
    }
    for (Found& f : list) {
      if (seconds > 0 && f.microseconds < 1e9)
        f.steady = warpweave::test::steady(
            nullptr, [&] { REQUIRE(product.run(f.algorithm, bytes)); }, seconds);
    }
    const auto rank = [](int which) {
      return [which](const Found& u, const Found& v) {
        return static_cast<unsigned>(u.rank[which]) < static_cast<unsigned>(v.rank[which]);  // -1 last
      };
    };
    if (list.empty()) continue;
    std::sort(list.begin(), list.end(), rank(1));
    const double first_time = list[0].microseconds;
    // What the engine takes of those whose warpgroups take tiles in turns: bit 2 of the custom option tells
    // of sharing one.
    const Found* taken = nullptr;
    std::int64_t least = 0;
    for (const Found& f : list) {
      if (p.k < warpweave::cuda::kLongSum || f.rank[1] < 0 || f.rank[1] >= kAskedByEngine ||
          Product::number(f.algorithm, CUBLASLT_ALGO_CONFIG_ID) != 66 ||
          (Product::number(f.algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION) & 4) != 0)
        continue;
      const std::int64_t elements = warpweave::cuda::elements_in_rounds(
          Product::number(f.algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID), p.n,
          std::max(p.sample_tokens, warpweave::cuda::kFewestTokens), multiprocessors());
      if (!taken || warpweave::cuda::worth_it(elements, least)) taken = &f, least = elements;
    }
    const double in_turns = taken ? taken->microseconds : first_time;
    const double asked = std::min_element(list.begin(), list.end(), rank(0))->microseconds;
    std::sort(list.begin(), list.end(),
              [](const Found& u, const Found& v) { return u.microseconds < v.microseconds; });
    std::printf(
        "%-14s %6lld x %4lld x %4lld, workspace %2zu MiB: limit %6.1f us, first %6.1f, taken %6.1f, "
        "first for the true number %6.1f, best %6.1f of %zu\n",
        p.name, static_cast<long long>(p.tokens), static_cast<long long>(p.n), static_cast<long long>(p.k),
        bytes >> 20, limit, first_time, in_turns, asked, list[0].microseconds, list.size());
    for (const Found& f : list) {
      std::printf("   %7.1f us", f.microseconds);
      if (seconds > 0)
        std::printf(" steady %7.1f us %5.1f mJ", f.steady.microseconds, f.steady.millijoules());
      std::printf("  #%d, for the true number #%d ", f.rank[1], f.rank[0]);
      for (const auto which :
           {CUBLASLT_ALGO_CONFIG_ID, CUBLASLT_ALGO_CONFIG_TILE_ID, CUBLASLT_ALGO_CONFIG_STAGES_ID,
            CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION})
        std::printf(" %d", Product::number(f.algorithm, which));
      std::printf("%s%s\n", product.kernel(f.algorithm, bytes).c_str(), f.same_bits ? "" : "  OTHER BITS");
    }
  }
  for (void* each : {static_cast<void*>(a), static_cast<void*>(y), static_cast<void*>(w),
                     static_cast<void*>(bias), workspace})
    REQUIRE(cudaFree(each));
  REQUIRE(cudaEventDestroy(begin));
  REQUIRE(cudaEventDestroy(end));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<std::size_t> workspaces;
    double seconds = 0;
    std::string only;
    for (int i = 1; i < argc; ++i) {
      const std::string argument = argv[i];
      if (argument == "--steady" && i + 1 < argc)
        seconds = std::atof(argv[++i]);
      else if (argument == "--only" && i + 1 < argc)
        only = argv[++i];
      else
        workspaces.push_back(static_cast<std::size_t>(std::atoi(argv[i])) << 20);
    }
    if (workspaces.empty()) workspaces = {0, std::size_t{32} << 20};
    REQUIRE(cudaFree(nullptr));
    cublasLtHandle_t handle = nullptr;
    REQUIRE(LT(cublasLtCreate)(&handle));
    for (const Problem& p : kProblems)
      if (std::string(p.name).find(only) != std::string::npos) measure(handle, p, workspaces, seconds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
