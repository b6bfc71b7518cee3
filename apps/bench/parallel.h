// Loops over big host grids, on all cores.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace warpweave::bench {

// body(i) for every i below count, in any order and from several threads; it must not throw.
template <class Body>
void in_parallel(std::int64_t count, const Body& body) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t i = next++; i < count; i = next++) body(i);
  };
  const auto helpers = std::min<std::int64_t>(count, std::thread::hardware_concurrency());
  std::vector<std::jthread> threads;
  for (std::int64_t i = 1; i < helpers; ++i) threads.emplace_back(work);
  work();
}

}  // namespace warpweave::bench
