#include "cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

namespace warpweave::cpu {
namespace {

TEST(ThreadPool, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::int64_t count : {0, 1, 2, 5, 64, 1000})
      for (const std::int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> hits(count);
        pool.parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end, int) {
          EXPECT_LE(end - begin, grain);
          for (std::int64_t i = begin; i < end; ++i) ++hits[i];
        });
        for (const auto& h : hits) ASSERT_EQ(h, 1);
      }
  }
}

TEST(ThreadPool, ASlotIsHeldByOneThreadAtATime) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<bool> clash{false};
  pool.parallel_for(2000, 1, [&](std::int64_t, std::int64_t, int slot) {
    ASSERT_GE(slot, 0);
    ASSERT_LT(slot, 4);
    if (++inside[slot] != 1) clash = true;
    --inside[slot];
  });
  EXPECT_FALSE(clash);
}

TEST(ThreadPool, AnExceptionReachesTheCallerAndThePoolStaysUsable) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.parallel_for(100, 1,
                                   [](std::int64_t begin, std::int64_t, int) {
                                     if (begin == 37) throw std::runtime_error("37");
                                   }),
                 std::runtime_error);
    std::atomic<int> sum{0};
    pool.parallel_for(
        100, 7, [&](std::int64_t begin, std::int64_t end, int) { sum += static_cast<int>(end - begin); });
    EXPECT_EQ(sum, 100);
  }
}

TEST(ThreadPool, CallersShareOnePool) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<std::int64_t> total{0};
  for (int c = 0; c < 8; ++c)
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round)
        pool.parallel_for(64, 1, [&](std::int64_t begin, std::int64_t, int) { total += begin; });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 8 * 50 * (63 * 64 / 2));
}

}  // namespace
}  // namespace warpweave::cpu
