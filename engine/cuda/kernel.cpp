#include "cuda/kernel.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <vector>

#include "cuda/verbose.h"
#include "warpweave/error.h"

namespace warpweave::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw Error(ErrorCode::device, std::string(what) + ": " + cudaGetErrorString(status));
}

struct KernelStore::Loaded {
  std::string label;
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
  ~Loaded() {
    if (library) cudaLibraryUnload(library);
  }
};

void Kernel::allow(std::size_t shared_bytes) const {
  if (shared_bytes <= 48 * 1024) return;
  const auto* function = reinterpret_cast<const void*>(handle_);
  const std::lock_guard lock(*limit_);
  cudaFuncAttributes now{};
  check(cudaFuncGetAttributes(&now, function), label_);
  if (static_cast<std::size_t>(std::max(now.maxDynamicSharedSizeBytes, 0)) >= shared_bytes) return;
  check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes)),
        "asking for shared memory");
}

int Kernel::resident_blocks(int threads, std::size_t shared_bytes) const {
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reinterpret_cast<const void*>(handle_),
                                                      threads, shared_bytes),
        label_);
  return std::max(blocks, 1);
}

void Kernel::launch(cudaStream_t stream, const Launch& shape, void** arguments) const {
  if (shape.blocks < 1 || shape.blocks > 0x7fffffff) {
    throw Error(ErrorCode::internal, std::string(label_) + ": " + std::to_string(shape.blocks) + " blocks");
  }
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (shape.cluster > 1) {
    auto& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  if (shape.overlap_previous && overlaps_) {
    auto& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (verbose_) {
    std::fprintf(stderr, "warpweave: launch %s, %lld blocks of %d threads, %zu bytes shared\n", label_,
                 static_cast<long long>(shape.blocks), shape.threads, shape.shared_bytes);
  }
  check(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(handle_), arguments), label_);
}

KernelStore::KernelStore(std::shared_ptr<const Compiler> compiler, int compute_capability)
    : compiler_(std::move(compiler)), compute_capability_(compute_capability) {}

KernelStore::~KernelStore() = default;

void KernelStore::load(std::span<const KernelSpec> specs) {
  const std::lock_guard lock(mutex_);
  std::set<KernelSpec> unique;
  for (const auto& spec : specs) {
    if (!loaded_.count(spec)) unique.insert(spec);
  }
  const std::vector<KernelSpec> wanted(unique.begin(), unique.end());
  if (wanted.empty()) return;
  Phase finding("reading the kernel cache, compiling what it lacks");
  const auto compiled = compiler_->compile(wanted, compute_capability_);
  finding.end();
  const Phase loading("loading " + std::to_string(wanted.size()) + " kernels");
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    auto entry = std::make_unique<Loaded>();
    entry->label = wanted[i].expression;
    check(cudaLibraryLoadData(&entry->library, compiled[i].machine_code.data(), nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
          ("loading " + entry->label).c_str());
    check(cudaLibraryGetKernel(&entry->kernel, entry->library, compiled[i].name.c_str()),
          ("loading " + entry->label).c_str());
    loaded_[wanted[i]] = std::move(entry);
  }
}

Kernel KernelStore::get(const KernelSpec& spec) {
  load({&spec, 1});
  const std::lock_guard lock(mutex_);
  const Loaded& entry = *loaded_.at(spec);
  Kernel kernel;
  kernel.handle_ = entry.kernel;
  kernel.label_ = entry.label.c_str();
  kernel.limit_ = &mutex_;
  kernel.verbose_ = verbose();
  kernel.overlaps_ = compute_capability_ >= 90;
  return kernel;
}

}  // namespace warpweave::cuda
