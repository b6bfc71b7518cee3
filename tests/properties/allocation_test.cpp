// session.run allocates nothing. Counted in malloc itself, so that Eigen and operator new are seen too; glibc
// only, and not under a sanitizer, which has its own malloc.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>

#include "properties/problem.h"

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WARPWEAVE_COUNTS_MALLOC 1

namespace {
std::atomic<long> allocations{0};
}

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t n) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(n);
}
void* calloc(std::size_t n, std::size_t size) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t n) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(p, n);
}
void* aligned_alloc(std::size_t alignment, std::size_t n) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, n);
}
int posix_memalign(void** p, std::size_t alignment, std::size_t n) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  *p = __libc_memalign(alignment, n);
  return *p ? 0 : 12;  // ENOMEM
}
}

namespace warpweave::properties {
namespace {

long allocated_by(const std::function<void()>& call) {
  const long before = allocations;
  call();
  return allocations - before;
}

TEST(Allocation, IsCounted) {
  EXPECT_GE(allocated_by([] { Tensor(DType::f32, {3}).data(); }), 1);
  EXPECT_GE(allocated_by([] { std::vector<int> v(1000, 1); }), 1);
}

TEST(Allocation, ARunAllocatesNothing) {
  const Model models[] = {
      make_block(64, 4),
      make_model(24,
                 {"axial_attention: {axis: column, heads: 3, causal: true, rope: {style: half}, norm: rms}",
                  "feed_forward: {hidden: 50}"}),
      make_model(16, {"linear: {out: 24}", "norm: {}", "axial_attention: {axis: row, heads: 4}",
                      "linear: {out: 16}"}),
      make_model(
          16,
          {"patch_embed: {patch: 1, channels: 16, dim: 32}", "position_embedding: {rows: 32, columns: 32}",
           "axial_attention: {axis: column, heads: 2}", "patch_unembed: {patch: 1, channels: 16}"}),
  };
  const Shape shape{2, 17, 19};
  for (const Model& model : models) {
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      const Engine engine(model, {.device = Device::cpu(), .precision = precision, .threads = 2});
      Session session = engine.prepare(shape);
      const std::int64_t channels = model.input_channels();
      const Tensor mask = random_mask(shape, 1);
      for (const DType type : {DType::f32, DType::f16}) {
        const Tensor x = random_grid(shape, channels, 1).to(type);
        Tensor y(type, x.shape());
        const RunOptions plain, masked{.mask = mask_view(mask)};
        session.run(view(x), view(y), plain);  // a first run may set up what a thread keeps
        EXPECT_EQ(allocated_by([&] {
                    session.run(view(x), view(y), plain);
                    session.run(view(x), view(y), masked);
                  }),
                  0)
            << session.explain();
      }
    }
  }
}

}  // namespace
}  // namespace warpweave::properties
#else
TEST(Allocation, IsCountedWithGlibcAndWithoutASanitizer) {
  GTEST_SKIP() << "the allocations of this C library, or of a sanitizer, are not counted";
}
#endif
