#include "calls.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

namespace {

constexpr int kMost = 64;
std::atomic<bool> counting{false};
std::atomic<int> count{0};
std::array<std::atomic<const char*>, kMost> names{};
std::string hidden;  // changed by the test alone, while nothing else runs
bool absent = false;

void note(const char* name) noexcept {
  if (!counting) return;
  const int i = count++;
  if (i < kMost) names[static_cast<std::size_t>(i)] = name;
}

}  // namespace

namespace warpweave::gpu_test {

CountedCalls::CountedCalls() {
  count = 0;
  counting = true;
}
CountedCalls::~CountedCalls() { counting = false; }

std::vector<std::string> CountedCalls::made() const {
  counting = false;
  std::vector<std::string> list;
  for (int i = 0; i < std::min(count.load(), kMost); ++i)
    list.emplace_back(names[static_cast<std::size_t>(i)].load());
  return list;
}

HiddenLibrary::HiddenLibrary(const std::string& part, As as) {
  hidden = part;
  absent = as == As::absent;
}
HiddenLibrary::~HiddenLibrary() { hidden.clear(); }

}  // namespace warpweave::gpu_test

// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names.
#define WARPWEAVE_COUNTED(name, parameters, arguments) \
  extern "C" cudaError_t __real_##name parameters;     \
  extern "C" cudaError_t __wrap_##name parameters {    \
    note(#name);                                       \
    return __real_##name arguments;                    \
  }
WARPWEAVE_COUNTED(cudaMalloc, (void** p, std::size_t n), (p, n))
WARPWEAVE_COUNTED(cudaMallocHost, (void** p, std::size_t n), (p, n))
WARPWEAVE_COUNTED(cudaMallocAsync, (void** p, std::size_t n, cudaStream_t s), (p, n, s))
WARPWEAVE_COUNTED(cudaFree, (void* p), (p))
WARPWEAVE_COUNTED(cudaFreeHost, (void* p), (p))
WARPWEAVE_COUNTED(cudaFreeAsync, (void* p, cudaStream_t s), (p, s))
WARPWEAVE_COUNTED(cudaMemcpy, (void* to, const void* from, std::size_t n, cudaMemcpyKind kind),
                  (to, from, n, kind))
WARPWEAVE_COUNTED(cudaMemset, (void* p, int value, std::size_t n), (p, value, n))
WARPWEAVE_COUNTED(cudaMemGetInfo, (std::size_t * free, std::size_t* total), (free, total))
WARPWEAVE_COUNTED(cudaDeviceSynchronize, (), ())
WARPWEAVE_COUNTED(cudaStreamSynchronize, (cudaStream_t s), (s))
WARPWEAVE_COUNTED(cudaStreamCreateWithFlags, (cudaStream_t * s, unsigned flags), (s, flags))
WARPWEAVE_COUNTED(cudaEventSynchronize, (cudaEvent_t e), (e))
WARPWEAVE_COUNTED(cudaEventCreateWithFlags, (cudaEvent_t * e, unsigned flags), (e, flags))
WARPWEAVE_COUNTED(cudaFuncSetAttribute, (const void* f, cudaFuncAttribute a, int value), (f, a, value))
WARPWEAVE_COUNTED(cudaLibraryLoadData,
                  (cudaLibrary_t * library, const void* code, cudaJitOption* jit, void** jit_values,
                   unsigned jit_count, cudaLibraryOption* options, void** values, unsigned option_count),
                  (library, code, jit, jit_values, jit_count, options, values, option_count))
#undef WARPWEAVE_COUNTED

extern "C" int __real_access(const char* name, int mode);
extern "C" int __wrap_access(const char* name, int mode) {
  if (!hidden.empty() && absent && std::string(name).find(hidden) != std::string::npos) {
    errno = ENOENT;
    return -1;
  }
  return __real_access(name, mode);
}

extern "C" void* __real_dlopen(const char* name, int flags);
extern "C" void* __wrap_dlopen(const char* name, int flags) {
  if (name && !hidden.empty() && std::string(name).find(hidden) != std::string::npos) return nullptr;
  return __real_dlopen(name, flags);
}
// NOLINTEND(bugprone-reserved-identifier)

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(std::size_t n) {
  note("operator new");
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t n, std::align_val_t alignment) {
  note("operator new");
  const auto a = static_cast<std::size_t>(alignment);
  if (void* p = std::aligned_alloc(a, (n + a - 1) / a * a)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
#endif
