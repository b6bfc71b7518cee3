#include "reliability/refusal.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WARPWEAVE_SANITIZED 1
#endif
#endif
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(WARPWEAVE_SANITIZED)
#define WARPWEAVE_REPLACES_MALLOC 1
#endif

namespace {

std::atomic<long> live{0};
thread_local bool armed = false, hit = false;
thread_local long successes_left = 0;
thread_local warpweave::reliability::Refuse manner = warpweave::reliability::Refuse::once;

// Whether the allocation that asks is to fail.
bool refuse() noexcept {
  if (!armed || successes_left-- > 0) return false;
  hit = true;
  if (manner == warpweave::reliability::Refuse::once) armed = false;
  return true;
}

}  // namespace

namespace warpweave::reliability {

Refusal::Refusal(long successes, Refuse how) noexcept {
  successes_left = successes;
  manner = how;
  hit = false;
  armed = true;
}
Refusal::~Refusal() { armed = false; }

bool refused_any() noexcept { return hit; }
long live_blocks() noexcept { return live; }

bool refuses_malloc() noexcept {
#ifdef WARPWEAVE_REPLACES_MALLOC
  return true;
#else
  return false;
#endif
}

}  // namespace warpweave::reliability

#ifdef WARPWEAVE_REPLACES_MALLOC
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

static void* no_memory() noexcept {
  errno = ENOMEM;
  return nullptr;
}
void* malloc(std::size_t n) noexcept { return refuse() ? no_memory() : __libc_malloc(n); }
void* calloc(std::size_t n, std::size_t size) noexcept {
  return refuse() ? no_memory() : __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t n) noexcept { return refuse() ? no_memory() : __libc_realloc(p, n); }
void* aligned_alloc(std::size_t alignment, std::size_t n) noexcept {
  return refuse() ? no_memory() : __libc_memalign(alignment, n);
}
int posix_memalign(void** p, std::size_t alignment, std::size_t n) noexcept {
  if (refuse()) return ENOMEM;
  *p = __libc_memalign(alignment, n);
  return *p ? 0 : ENOMEM;
}
}
#endif

namespace {

void* take(std::size_t size, std::size_t alignment) {
#ifndef WARPWEAVE_REPLACES_MALLOC
  if (refuse()) throw std::bad_alloc();
#endif
  size = size > 0 ? size : 1;
  void* const p = alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__
                      ? std::malloc(size)
                      : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (p == nullptr) throw std::bad_alloc();
  ++live;
  return p;
}

void give_back(void* p) noexcept {
  if (p != nullptr) --live;
  std::free(p);
}

}  // namespace

// The other forms call these, but with AddressSanitizer the nothrow ones do not.
void* operator new(std::size_t size) { return take(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return take(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  try {
    return operator new(size, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* p) noexcept { give_back(p); }
void operator delete(void* p, std::size_t) noexcept { give_back(p); }
void operator delete(void* p, std::align_val_t) noexcept { give_back(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { give_back(p); }
