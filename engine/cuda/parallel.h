// Independent pieces of work on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace warpweave::cuda {

// body(i) for every i below `count`, on up to as many threads as there are cores; the caller is one of them,
// and the only one where no other can be had. Returns when all are done; of several exceptions the one of the
// smallest i is thrown.
template <class Body>
void in_parallel(std::size_t count, const Body& body) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::size_t failed = count;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) failure = std::current_exception(), failed = i;
      }
    }
  };
  {
    const std::size_t helpers = std::min<std::size_t>(count, std::thread::hardware_concurrency());
    std::vector<std::jthread> threads;
    threads.reserve(helpers);
    try {
      while (threads.size() + 1 < helpers) threads.emplace_back(work);
    } catch (const std::system_error&) {
    }
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace warpweave::cuda
