// A few worker threads that share the chunks of a loop with the thread that called.
//
// Several threads may run loops on one pool at the same time: the workers help whichever has chunks left, and
// each caller works on its own loop, so that no caller waits for another's. Nothing is allocated by a loop.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace warpweave::cpu {

class ThreadPool {
 public:
  // `threads` counts the caller: threads - 1 workers are started; 0 = all cores this process may use.
  // Throws Error(device) where the system refuses one.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const noexcept { return threads_; }

  // Calls body(begin, end, slot) for disjoint ranges of at most `grain` that cover [0, count), and returns
  // when all are done. Ranges are handed out in rising order, to threads that run: a body may wait for what
  // an earlier range does, if that does not throw. `slot` in [0, threads()) is held by one thread at a time
  // within this loop: index scratch by it. An exception of the body is thrown to the caller after the loop
  // has drained.
  template <class Body>
  void parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
    run(count, grain, &body, [](const void* b, std::int64_t begin, std::int64_t end, int slot) {
      (*static_cast<const Body*>(b))(begin, end, slot);
    });
  }

 private:
  using Call = void (*)(const void*, std::int64_t, std::int64_t, int);
  struct Job;

  void run(std::int64_t count, std::int64_t grain, const void* body, Call call);
  static void work(Job& job, int slot);
  void work_guarded(Job& job, int slot);
  Job* open_job() const;  // one with chunks left, or null
  void worker(int slot);
  void stop();

  int threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  Job* jobs_ = nullptr;  // those with chunks left, newest first
  bool stop_ = false;
  std::vector<std::thread> workers_;
  // Counts loops, and the end. It changes under the mutex; idle workers watch it, on a cache line of its own.
  alignas(64) std::atomic<std::uint64_t> posted_{0};
};

}  // namespace warpweave::cpu
