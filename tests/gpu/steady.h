// The time and the energy of a launch once the GPU's clocks have settled: under long products a GPU reaches
// its power limit after some ten milliseconds and lowers its clocks, and from then on what takes less energy
// is faster.
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <chrono>

namespace warpweave::test {

// Joules that the first GPU of the machine has taken since its driver was loaded, by NVML; 0 where that is
// not there. It is renewed every 20 to 100 ms.
inline double joules_taken() {
  static const auto read = []() -> int (*)(void*, unsigned long long*) {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return nullptr;
    const auto start = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    if (!start || start() != 0) return nullptr;
    return reinterpret_cast<int (*)(void*, unsigned long long*)>(
        dlsym(library, "nvmlDeviceGetTotalEnergyConsumption"));
  }();
  static void* const device = []() -> void* {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto find =
        library ? reinterpret_cast<int (*)(unsigned, void**)>(dlsym(library, "nvmlDeviceGetHandleByIndex_v2"))
                : nullptr;
    void* found = nullptr;
    return find && find(0, &found) == 0 ? found : nullptr;
  }();
  unsigned long long millijoules = 0;
  return read && device && read(device, &millijoules) == 0 ? static_cast<double>(millijoules) * 1e-3 : 0;
}

struct Steady {
  double microseconds = 0, watts = 0;
  double millijoules() const { return watts * microseconds * 1e-3; }
};

// `launch` enqueues one run on `stream`; it runs for `seconds`, the latter half of which counts.
template <class Launch>
Steady steady(cudaStream_t stream, const Launch& launch, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto now = [] { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); };
  cudaEvent_t done[2];
  for (auto& each : done) cudaEventCreateWithFlags(&each, cudaEventDisableTiming);
  const double start = now();
  double half = 0, energy = 0;
  long runs = 0;
  constexpr int kBatch = 40;
  for (int batch = 0;; ++batch) {
    for (int i = 0; i < kBatch; ++i) launch();
    cudaEventRecord(done[batch % 2], stream);
    if (batch == 0) continue;
    cudaEventSynchronize(done[(batch + 1) % 2]);  // of the batch before
    const double t = now();
    if (half > 0) runs += kBatch;
    if (half == 0 && t - start >= seconds / 2) half = t, energy = joules_taken();
    if (half > 0 && runs > 0 && t - start >= seconds) {
      const double taken = joules_taken() - energy;
      cudaStreamSynchronize(stream);
      for (auto& each : done) cudaEventDestroy(each);
      return {(t - half) / static_cast<double>(runs) * 1e6, taken / (t - half)};
    }
  }
}

}  // namespace warpweave::test
