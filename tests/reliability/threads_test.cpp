// One engine and many threads with a session each; and a system that refuses threads.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <limits>
#include <thread>

#include "formats/support.h"
#include "properties/problem.h"

#if defined(__SANITIZE_THREAD__)
#define WARPWEAVE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WARPWEAVE_TSAN 1
#endif
#endif

namespace {
std::atomic<int> threads_left{1 << 30};  // that may still be started
}

#ifndef WARPWEAVE_TSAN  // which has a pthread_create of its own
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                              void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left.fetch_sub(1) <= 0) return EAGAIN;
  return create(thread, attributes, start, argument);
}
#endif

namespace warpweave::reliability {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using namespace properties;  // NOLINT: random models and grids

// 16 threads, 16 sessions of 4 shapes, one engine: the bits of a single thread.
TEST(Threads, SixteenSessionsOfOneEngineGiveTheSameBits) {
  constexpr int kThreads = 16, kRuns = 6;
  const Model models[] = {
      make_block(24, 3),
      make_model(
          8, {"patch_embed: {patch: 1, channels: 8, dim: 16}", "position_embedding: {rows: 32, columns: 32}",
              "axial_attention: {axis: column, heads: 2, causal: true, rope: {style: interleaved}}",
              "feed_forward: {hidden: 24}", "norm: {kind: rms}", "linear: {out: 12}"})};
  const Shape shapes[] = {{1, 13, 9}, {2, 5, 16}, {1, 1, 31}, {3, 4, 4}};
  for (const Model& model : models) {
    for (const std::string& plan : plans()) {
      const Engine engine = cpu_engine(model, plan, Precision::fp32, 3);
      std::vector<Tensor> x, mask, expected;
      for (int t = 0; t < kThreads; ++t) {
        x.push_back(random_grid(shapes[t % 4], model.input_channels(), static_cast<std::uint64_t>(t)));
        mask.push_back(random_mask(shapes[t % 4], static_cast<std::uint64_t>(t)));
        expected.push_back(run(cpu_engine(model, plan, Precision::fp32, 1), x.back(), &mask.back()));
      }
      std::atomic<int> ready{0};
      std::vector<int> wrong(kThreads, 0);
      std::vector<std::thread> threads;
      for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
          ++ready;
          while (ready < kThreads) std::this_thread::yield();  // all prepare, and so pack weights, at once
          Session session = engine.prepare(shapes[t % 4]);
          Tensor y(DType::f32, expected[t].shape());
          for (int i = 0; i < kRuns; ++i) {
            session.run(view(std::as_const(x[t])), view(y), {.mask = mask_view(mask[t])});
            wrong[t] += !same_bits(y, expected[t]);
          }
          wrong[t] += !same_bits(engine.run(x[t], &mask[t]), expected[t]);
          wrong[t] += engine.plan(shapes[t % 4]).size() != session.plan().size();
        });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_THAT(wrong, Each(0)) << plan;
    }
  }
}

// Models and engines come and go in many threads; sessions outlive the engine that made them.
TEST(Threads, EnginesOfOneModelComeAndGo) {
  const Model model = make_block(16, 2);
  const Tensor x = random_grid({1, 6, 7}, 16, 1);
  const Tensor expected = run(cpu_engine(model, "auto", Precision::fp32, 1), x);
  std::vector<int> wrong(8, 0);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&model, &x, &expected, &count] {
      for (int i = 0; i < 5; ++i) {
        Session session = cpu_engine(Model(model), "auto", Precision::fp32, 2).prepare({1, 6, 7});
        Tensor y(DType::f32, x.shape());
        session.run(view(x), view(y));
        count += !same_bits(y, expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, Each(0));
}

TEST(ThreadsRefused, IsADeviceErrorAndTheNextEngineWorks) {
#ifdef WARPWEAVE_TSAN
  GTEST_SKIP() << "ThreadSanitizer has its own pthread_create; refusing threads cannot be tested under it";
#endif
  const Model model = make_block();
  for (int allowed = 0; allowed < 7; ++allowed) {
    threads_left = allowed;
    const std::string message =
        testing::error_of([&] { cpu_engine(model, "auto", Precision::fp32, 8); }, ErrorCode::device);
    threads_left = 1 << 30;
    EXPECT_THAT(message, AllOf(HasSubstr("cannot start thread " + std::to_string(allowed + 2) + " of 8"),
                               HasSubstr("fewer threads")));
  }
  const Tensor x = random_grid({1, 4, 4}, 16, 1);
  EXPECT_TRUE(same_bits(run(cpu_engine(model, "auto", Precision::fp32, 8), x),
                        run(cpu_engine(model, "auto", Precision::fp32, 1), x)));
}

TEST(ThreadsRefused, NumbersBeyondReason) {
  const Model model = make_block();
  for (const int threads : {-1, 4097, std::numeric_limits<int>::max()}) {
    EXPECT_THAT(testing::error_of([&] { cpu_engine(model, "auto", Precision::fp32, threads); }),
                HasSubstr("threads: " + std::to_string(threads)));
  }
}

}  // namespace
}  // namespace warpweave::reliability
