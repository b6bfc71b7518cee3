#include "cuda/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "cuda/backend.h"
#include "cuda/blas.h"
#include "warpweave/error.h"

namespace warpweave::cuda {
namespace {

constexpr int kLeastCapability = 80;
constexpr double kKeptOfL2 = 0.6;  // measured on an H200: anything from 0.35 to 0.9 does as well

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, index), "reading a property of the GPU");
  return value;
}

int capability(int index) {
  return attribute(cudaDevAttrComputeCapabilityMajor, index) * 10 +
         attribute(cudaDevAttrComputeCapabilityMinor, index);
}

std::string driver_problem(cudaError_t status) {
  switch (status) {
    case cudaErrorInsufficientDriver: {
      int driver = 0, runtime = 0;
      cudaDriverGetVersion(&driver);
      cudaRuntimeGetVersion(&runtime);
      if (driver == 0) return "no NVIDIA driver is loaded";
      const auto words = [](int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); };
      // A driver serves every minor version of its major one.
      return "the NVIDIA driver is too old: it serves CUDA " + words(driver) + ", and " +
             words(runtime / 1000 * 1000) + " is needed; update the driver";
    }
    case cudaErrorNoDevice:
      return "no NVIDIA GPU is present, or CUDA_VISIBLE_DEVICES hides it";
    default:
      return std::string("the NVIDIA driver cannot be used: ") + cudaGetErrorString(status);
  }
}

// Without the driver's and the device's state, so that it can be asked at any time.
std::string device_problem(int index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    return driver_problem(status);
  }
  if (count == 0) return driver_problem(cudaErrorNoDevice);
  if (index < 0 || index >= count) {
    return "there is no cuda:" + std::to_string(index) + "; this machine has " + std::to_string(count) +
           (count == 1 ? " GPU, cuda:0" : " GPUs, from cuda:0 on");
  }
  return capability_problem(capability(index));
}

std::string compiler_problem(const Compiler& compiler) {
  return !compiler.cache().empty() || compiler.missing().empty()
             ? std::string()
             : compiler.missing() + " (and the kernel cache " + compiler.cache().folder().string() +
                   " is empty)";
}

}  // namespace

std::string capability_problem(int compute_capability) {
  if (compute_capability >= kLeastCapability) return {};
  return "the GPU has compute capability " + std::to_string(compute_capability / 10) + "." +
         std::to_string(compute_capability % 10) + "; 8.0 or newer (Ampere, 2020) is needed";
}

std::string unusable(int index) {
  if (std::string problem = device_problem(index); !problem.empty()) return problem;
  return compiler_problem(Compiler());
}

CurrentDevice::CurrentDevice(int index) {
  check(cudaGetDevice(&before_), "asking for the current GPU");
  if (before_ == index) {
    before_ = -1;
    return;
  }
  check(cudaSetDevice(index), "choosing the GPU");
}

CurrentDevice::~CurrentDevice() {
  if (before_ >= 0) cudaSetDevice(before_);
}

GpuDevice::GpuDevice(int index) : index_(index) {
  const auto refuse = [&](const std::string& problem) {
    if (!problem.empty()) throw Error(ErrorCode::device, "cuda:" + std::to_string(index) + ": " + problem);
  };
  refuse(device_problem(index));
  auto compiler = std::make_shared<const Compiler>();
  refuse(compiler_problem(*compiler));
  const CurrentDevice current(index);
  compute_capability_ = capability(index);
  multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount, index);
  reaches_host_memory_ = attribute(cudaDevAttrPageableMemoryAccess, index) != 0;
  l2_bytes_ = attribute(cudaDevAttrL2CacheSize, index);
  shared_memory_per_block_ = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  kernels_ = std::make_unique<KernelStore>(std::move(compiler), compute_capability_);
}

GpuDevice::~GpuDevice() = default;

void GpuDevice::expect_blas(Precision precision) const {
  const std::lock_guard lock(blas_mutex_);
  if (blas_.valid()) return;
  ++blas_attempt_;
  // Where no thread can be had, the first who waits does it.
  blas_ = std::async(std::launch::async | std::launch::deferred, [index = index_, precision] {
            OpenedBlas opened;
            const CurrentDevice current(index);
            opened.blas = Blas::open(precision, opened.missing);
            return opened;
          }).share();
}

const GpuDevice::OpenedBlas& GpuDevice::opened_blas() const {
  expect_blas(Precision::fp32);
  const auto [opening, attempt] = [&] {
    const std::lock_guard lock(blas_mutex_);
    return std::pair(blas_, blas_attempt_);
  }();
  try {
    return opening.get();  // blas_ keeps it
  } catch (...) {
    const std::lock_guard lock(blas_mutex_);
    if (attempt == blas_attempt_) blas_ = {};  // the next call tries again
    throw;
  }
}

float GpuDevice::kept_share(std::int64_t bytes) const noexcept {
  const double kept = kKeptOfL2 * static_cast<double>(l2_bytes_);
  return static_cast<float>(
      std::clamp(kept / static_cast<double>(std::max<std::int64_t>(bytes, 1)), 0.01, 1.0));
}

const Blas* GpuDevice::blas() const { return opened_blas().blas.get(); }

std::string GpuDevice::blas_missing() const {
  const bool opened = [&] {
    const std::lock_guard lock(blas_mutex_);
    return blas_.valid();
  }();
  return opened || !Blas::installed() ? opened_blas().missing : std::string();
}

plan::Conditions GpuDevice::conditions(Precision precision) const noexcept {
  return {precision, compute_capability_, shared_memory_per_block_};
}

}  // namespace warpweave::cuda
