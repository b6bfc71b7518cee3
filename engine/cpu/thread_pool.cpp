#include "cpu/thread_pool.h"

#include <sched.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <system_error>

#include "warpweave/error.h"

namespace warpweave::cpu {

// One loop. It lives on its caller's stack; `next_job` and `error` are guarded by the pool's mutex. So are
// changes of `active`; its caller may watch it without.
struct ThreadPool::Job {
  Job(std::int64_t count_, std::int64_t grain_, const void* body_, Call call_)
      : count(count_), grain(grain_), body(body_), call(call_) {}

  const std::int64_t count, grain;
  const void* const body;
  const Call call;
  std::atomic<std::int64_t> next{0};
  std::atomic<int> active{0};  // workers inside it
  Job* next_job = nullptr;
  std::condition_variable idle;
  std::exception_ptr error;
  std::atomic<bool> failed{false};

  bool exhausted() const noexcept { return next.load(std::memory_order_relaxed) >= count; }
};

namespace {

// To sleep and to be woken takes some ten microseconds, and most waits are shorter: the threads of a loop end
// nearly together, and a layer's loop follows the one before at once. So a thread looks for this long before
// it sleeps, and no longer: it may be in the way of one that works.
constexpr std::chrono::microseconds kWatch{30};

void pause() noexcept {
#if defined(__SSE2__)
  _mm_pause();
#endif
}

template <class Condition>
void watch(const Condition& holds) {
  const auto end = std::chrono::steady_clock::now() + kWatch;
  while (!holds() && std::chrono::steady_clock::now() < end) pause();
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads > 0 ? threads : usable_cores()) {
  workers_.reserve(threads_ - 1);
  try {
    for (int slot = 1; slot < threads_; ++slot) workers_.emplace_back([this, slot] { worker(slot); });
  } catch (const std::system_error& e) {
    stop();
    throw Error(ErrorCode::device, fmt::format("cannot start thread {} of {}: {}; ask for fewer threads",
                                               workers_.size() + 2, threads_, e.code().message()));
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    ++posted_;
  }
  wake_.notify_all();
  for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::work(Job& job, int slot) {
  for (;;) {
    const std::int64_t begin = job.next.fetch_add(job.grain, std::memory_order_relaxed);
    if (begin >= job.count || job.failed.load(std::memory_order_relaxed)) return;
    job.call(job.body, begin, std::min(job.count, begin + job.grain), slot);
  }
}

// Works on a job and keeps the first exception of its body for the caller.
void ThreadPool::work_guarded(Job& job, int slot) {
  try {
    work(job, slot);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!job.error) job.error = std::current_exception();
    job.failed = true;
  }
}

ThreadPool::Job* ThreadPool::open_job() const {
  for (Job* job = jobs_; job; job = job->next_job)
    if (!job->exhausted() && !job->failed) return job;
  return nullptr;
}

void ThreadPool::worker(int slot) {
  std::unique_lock lock(mutex_);
  for (;;) {
    Job* job = open_job();
    if (!job && !stop_) {
      const std::uint64_t seen = posted_;
      lock.unlock();
      watch([&] { return posted_.load(std::memory_order_relaxed) != seen; });
      lock.lock();
      wake_.wait(lock, [&] { return stop_ || (job = open_job()); });
    }
    if (stop_) return;
    ++job->active;
    lock.unlock();
    work_guarded(*job, slot);
    lock.lock();
    if (--job->active == 0) job->idle.notify_one();
  }
}

void ThreadPool::run(std::int64_t count, std::int64_t grain, const void* body, Call call) {
  if (count <= 0) return;
  grain = std::max<std::int64_t>(1, grain);
  if (threads_ == 1 || count <= grain) {
    for (std::int64_t begin = 0; begin < count; begin += grain)
      call(body, begin, std::min(count, begin + grain), 0);
    return;
  }
  Job job(count, grain, body, call);
  {
    const std::lock_guard lock(mutex_);
    job.next_job = jobs_;
    jobs_ = &job;
    ++posted_;
  }
  wake_.notify_all();
  work_guarded(job, 0);
  watch([&] { return job.active.load(std::memory_order_relaxed) == 0; });
  std::unique_lock lock(mutex_);
  Job** link = &jobs_;
  while (*link != &job) link = &(*link)->next_job;
  *link = job.next_job;
  job.idle.wait(lock, [&] { return job.active == 0; });
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace warpweave::cpu
