#include "cuda/blas.h"

#include "cuda/dynamic_library.h"
#include "cuda/kernel.h"
#include "cuda/product_tiles.h"
#include "cuda/verbose.h"
#include "warpweave/error.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace warpweave::cuda {
namespace {

struct Functions {
  decltype(cublasLtCreate)* create;
  decltype(cublasLtDestroy)* destroy;
  decltype(cublasLtMatmul)* matmul;
  decltype(cublasLtMatmulDescInit_internal)* descriptor_init;
  decltype(cublasLtMatmulDescSetAttribute)* descriptor_set;
  decltype(cublasLtMatrixLayoutInit_internal)* layout_init;
  decltype(cublasLtMatrixLayoutSetAttribute)* layout_set;
  decltype(cublasLtMatmulPreferenceInit_internal)* preference_init;
  decltype(cublasLtMatmulPreferenceSetAttribute)* preference_set;
  decltype(cublasLtMatmulAlgoGetHeuristic)* heuristic;
  decltype(cublasLtMatmulAlgoConfigGetAttribute)* algorithm_get;

  explicit Functions(const DynamicLibrary& library) {
    library.resolve(create, "cublasLtCreate");
    library.resolve(destroy, "cublasLtDestroy");
    library.resolve(matmul, "cublasLtMatmul");
    library.resolve(descriptor_init, "cublasLtMatmulDescInit_internal");
    library.resolve(descriptor_set, "cublasLtMatmulDescSetAttribute");
    library.resolve(layout_init, "cublasLtMatrixLayoutInit_internal");
    library.resolve(layout_set, "cublasLtMatrixLayoutSetAttribute");
    library.resolve(preference_init, "cublasLtMatmulPreferenceInit_internal");
    library.resolve(preference_set, "cublasLtMatmulPreferenceSetAttribute");
    library.resolve(heuristic, "cublasLtMatmulAlgoGetHeuristic");
    library.resolve(algorithm_get, "cublasLtMatmulAlgoConfigGetAttribute");
  }
};

void require(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(ErrorCode::device, std::string("cuBLASLt, ") + what + ": status " + std::to_string(status));
  }
}

cudaDataType_t data_type(Precision precision) {
  switch (storage_type(precision)) {
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

// cuBLASLt's matrices are column-major: our [rows, columns] is its [columns, rows].
// `pitch` elements lie between the starts of rows.
cublasLtMatrixLayoutOpaque_t layout(const Functions& call, cudaDataType_t type, std::int64_t rows,
                                    std::int64_t columns, std::int64_t pitch, std::int64_t runs,
                                    std::int64_t stride) {
  cublasLtMatrixLayoutOpaque_t result{};
  require(call.layout_init(&result, sizeof result, type, static_cast<std::uint64_t>(columns),
                           static_cast<std::uint64_t>(rows), pitch),
          "describing a matrix");
  if (runs > 1) {
    const auto count = static_cast<std::int32_t>(runs);
    require(call.layout_set(&result, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count), "a batch");
    require(call.layout_set(&result, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
            "a batch");
  }
  return result;
}

// What was chosen for which product, for all layers of a model that are alike.
struct Choices {
  std::int64_t multiprocessors = 0;
  std::mutex mutex;
  std::map<std::array<std::int64_t, 9>, cublasLtMatmulAlgo_t> made;
};

// Sums over k in float32 arithmetic longer than this are cut: their error grows with the root of the length,
// and partial sums added up in y keep it within the contract.
constexpr std::int64_t kLongestFloatSum = 512;
constexpr std::int64_t kFloatPart = 384;

// What the library is asked for its suggestions with.
std::int64_t typical_tokens(std::int64_t of_sample) {
  return std::clamp<std::int64_t>(
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(of_sample))), kFewestTokens, 65536);
}

// y = act(a w^T + bias) + add * c over k elements out of rows that are `pitch` elements apart.
class Part {
 public:
  Part(const Functions& call, cublasLtHandle_t handle, Choices& choices, const ProductSpec& spec,
       std::int64_t offset, std::int64_t k, bool add, bool last)
      : call_(call),
        handle_(handle),
        spec_(spec),
        multiprocessors_(choices.multiprocessors),
        offset_(offset),
        k_(k),
        add_(add ? 1.0f : 0.0f),
        operand_(data_type(spec.precision)),
        result_(spec.float_result ? CUDA_R_32F : operand_) {
    const auto compute =
        spec.precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    require(call_.descriptor_init(&descriptor_, sizeof descriptor_, compute, CUDA_R_32F),
            "describing a product");
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    const bool bias = last && spec.bias, relu = last && spec.relu;
    const auto epilogue = bias ? (relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS)
                               : (relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (bias) {
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, spec.bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(result_));
    }
    const std::lock_guard lock(choices.mutex);
    const auto [choice, made] =
        choices.made.try_emplace({spec.n, k, spec.k, static_cast<std::int64_t>(spec.precision),
                                  spec.float_result, add, epilogue, bias, spec.sample_tokens});
    if (made) {
      try {
        choice->second = choose();
      } catch (...) {
        choices.made.erase(choice);
        throw;
      }
    }
    algorithm_ = choice->second;
  }

  void enqueue(cudaStream_t stream, const ProductRun& run) const {
    constexpr std::int64_t kMostRuns = 32768;
    const float one = 1.0f;
    const std::int64_t in_bytes = operand_ == CUDA_R_32F ? 4 : 2, out_bytes = result_ == CUDA_R_32F ? 4 : 2;
    const std::int64_t a_run = run.a_pitch.run * spec_.k, y_run = run.y_pitch.run * spec_.n;  // elements
    for (std::int64_t first = 0; first < run.runs; first += kMostRuns) {
      const std::int64_t count = std::min(kMostRuns, run.runs - first);
      auto weight = layout(call_, operand_, spec_.n, k_, spec_.k, count, 0);
      auto input = layout(call_, operand_, run.tokens, k_, run.a_pitch.token * spec_.k, count, a_run);
      auto output = layout(call_, result_, run.tokens, spec_.n, run.y_pitch.token * spec_.n, count, y_run);
      auto* d = static_cast<std::byte*>(run.y) + first * y_run * out_bytes;
      require(call_.matmul(handle_, &descriptor_, &one,
                           static_cast<const std::byte*>(spec_.weight) + offset_ * in_bytes, &weight,
                           static_cast<const std::byte*>(run.a) + (first * a_run + offset_) * in_bytes,
                           &input, &add_, d, &output, d, &output, &algorithm_, nullptr, 0, stream),
              "multiplying");
    }
  }

 private:
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    require(call_.descriptor_set(&descriptor_, attribute, &value, sizeof value), "describing a product");
  }

  cublasLtMatmulAlgo_t choose() const {
    cublasLtMatmulPreferenceOpaque_t preference{};
    require(call_.preference_init(&preference, sizeof preference), "choosing an algorithm");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      require(call_.preference_set(&preference, attribute, &value, sizeof value), "choosing an algorithm");
    };
    // No workspace and no reduction: the sum over k is never split among blocks.
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::size_t{0});
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
    for (const auto which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      prefer(which, std::uint32_t{16});
    }
    auto weight = layout(call_, operand_, spec_.n, k_, spec_.k, 1, 0);
    const std::int64_t tokens = typical_tokens(spec_.sample_tokens);
    auto input = layout(call_, operand_, tokens, k_, spec_.k, 1, 0);
    auto output = layout(call_, result_, tokens, spec_.n, spec_.n, 1, 0);
    const Phase phase("");
    std::array<cublasLtMatmulHeuristicResult_t, 8> found{};
    int count = 0;
    call_.heuristic(handle_, &descriptor_, &weight, &input, &output, &output, &preference,
                    static_cast<int>(found.size()), found.data(), &count);
    const cublasLtMatmulAlgo_t* chosen = nullptr;
    std::optional<std::int64_t> least;
    for (int i = 0; i < count; ++i) {
      const cublasLtMatmulAlgo_t& algorithm = found[i].algo;
      if (found[i].state != CUBLAS_STATUS_SUCCESS || number(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1)
        continue;
      if (!chosen) chosen = &algorithm;
      if (operand_ == CUDA_R_32F || k_ < kLongSum) break;
      if (!takes_turns(algorithm)) continue;
      const std::int64_t elements = elements_in_rounds(algorithm);
      if (!least || worth_it(elements, *least)) least = elements, chosen = &algorithm;
    }
    if (chosen) {
      tell(*chosen, phase.milliseconds());
      return *chosen;
    }
    throw Error(ErrorCode::device,
                "cuBLASLt has no algorithm for a product with n = " + std::to_string(spec_.n) +
                    ", k = " + std::to_string(spec_.k) + " in " + std::string(to_string(spec_.precision)));
  }

  // Of Hopper's persistent kernels (algorithm 66) those whose two warpgroups have a tile each, so that the
  // results of one are stored while the other multiplies. Bit 2 of the custom option is set for those whose
  // warpgroups share a tile ("coop" in the kernel's name, cuBLASLt 13.0).
  bool takes_turns(const cublasLtMatmulAlgo_t& algorithm) const {
    return number(algorithm, CUBLASLT_ALGO_CONFIG_ID) == 66 &&
           (number(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION) & 4) == 0;
  }

  std::int64_t elements_in_rounds(const cublasLtMatmulAlgo_t& algorithm) const {
    return cuda::elements_in_rounds(number(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID), spec_.n,
                                    std::max(spec_.sample_tokens, kFewestTokens), multiprocessors_);
  }

  int number(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) const {
    std::int32_t value = 0;
    std::size_t written = 0;
    const bool good =
        call_.algorithm_get(&algorithm, attribute, &value, sizeof value, &written) == CUBLAS_STATUS_SUCCESS;
    return good ? value : -1;
  }

  void tell(const cublasLtMatmulAlgo_t& algorithm, double milliseconds) const {
    if (!verbose()) return;
    std::fprintf(
        stderr,
        "warpweave: product n = %lld, k = %lld, %s: cuBLASLt algorithm %d, tile %d, stages %d, in %.1f ms\n",
        static_cast<long long>(spec_.n), static_cast<long long>(k_),
        std::string(to_string(spec_.precision)).c_str(), number(algorithm, CUBLASLT_ALGO_CONFIG_ID),
        number(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID), number(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
        milliseconds);
  }

  const Functions& call_;
  cublasLtHandle_t handle_;
  ProductSpec spec_;
  std::int64_t multiprocessors_, offset_, k_;
  float add_;
  cudaDataType_t operand_, result_;
  mutable cublasLtMatmulDescOpaque_t
      descriptor_{};  // the library takes it as non-const but does not change it
  cublasLtMatmulAlgo_t algorithm_{};
};

class LtProduct final : public Product {
 public:
  LtProduct(const Functions& call, cublasLtHandle_t handle, Choices& choices, const ProductSpec& spec) {
    const std::int64_t step =
        spec.precision == Precision::fp32 && spec.k > kLongestFloatSum ? kFloatPart : spec.k;
    for (std::int64_t offset = 0; offset < spec.k; offset += step) {
      const std::int64_t k = std::min(step, spec.k - offset);
      parts_.emplace_back(call, handle, choices, spec, offset, k, offset > 0 || spec.residual,
                          offset + k == spec.k);
    }
  }
  void enqueue(cudaStream_t stream, const ProductRun& run) const override {
    for (const Part& part : parts_) part.enqueue(stream, run);
  }

 private:
  std::vector<Part> parts_;
};

class LtBlas final : public Blas {
 public:
  LtBlas(std::unique_ptr<DynamicLibrary> library, Precision precision)
      : library_(std::move(library)), call_(*library_) {
    const Phase phase("starting cuBLASLt");
    // The library asks the driver about this thread's context, which a thread does not have before it says
    // so.
    int device = 0;
    check(cudaGetDevice(&device), "asking for the current GPU");
    check(cudaSetDevice(device), "choosing the GPU");
    int multiprocessors = 0;
    check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "asking the GPU");
    choices_.multiprocessors = multiprocessors;
    require(call_.create(&handle_), "starting");
    try {
      (void)product({.n = 64, .k = 64, .precision = precision});
    } catch (const Error&) {  // whoever wants a product is told
    }
  }
  ~LtBlas() override { call_.destroy(handle_); }
  std::unique_ptr<const Product> product(const ProductSpec& spec) const override {
    return std::make_unique<LtProduct>(call_, handle_, choices_, spec);
  }

 private:
  std::unique_ptr<DynamicLibrary> library_;
  Functions call_;
  cublasLtHandle_t handle_ = nullptr;
  mutable Choices choices_;
};

// It carries the major version of the toolkit whose header this was built with.
const std::string& file_name() {
  static const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  return name;
}

}  // namespace

bool Blas::installed() {
  const std::array names = {file_name().c_str()};
  return !DynamicLibrary::find(names).empty();
}

std::unique_ptr<const Blas> Blas::open(Precision precision, std::string& missing) {
  const std::array names = {file_name().c_str()};
  try {
    if (auto library = DynamicLibrary::open(names, missing))
      return std::make_unique<LtBlas>(std::move(library), precision);
  } catch (const Error& error) {
    missing = error.what();
  }
  return nullptr;
}

}  // namespace warpweave::cuda

#else

namespace warpweave::cuda {
std::unique_ptr<const Blas> Blas::open(Precision, std::string& missing) {
  missing = "this build has no cuBLASLt support";
  return nullptr;
}
bool Blas::installed() { return false; }
}  // namespace warpweave::cuda

#endif
