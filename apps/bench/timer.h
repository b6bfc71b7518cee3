// A session made ready to be timed again and again.
#pragma once

#include <memory>
#include <string>

#include "warpweave/warpweave.h"

namespace warpweave::bench {

class Timer {
 public:
  virtual ~Timer() = default;
  virtual double run() = 0;         // seconds for one pass through the model
  virtual bool finite() const = 0;  // whether the output that stands there now holds numbers alone
  virtual int chain() const noexcept { return 1; }  // passes that one run() is the mean of
};

// Host memory to host memory, by the wall clock. x and the session outlive the timer.
std::unique_ptr<Timer> host_timer(Session& session, const Tensor& x);

// On a GPU: passes chained in one replayed CUDA graph, the output of one being the input of the next (or,
// where the shapes differ, all on the same input), by the device's events; 20 passes, or 5 where one is over
// 50 GFLOP. Grids of x's type on the device. Output is poisoned first. In a build without CUDA there is no
// GPU session that it could be called with: Error(device).
std::unique_ptr<Timer> graph_timer(Session& session, Device device, const Tensor& x, double flops);
// One pass on device memory.
void run_on_device(Session& session, Device device, const Tensor& x);

std::string gpu_name(int index);  // "NVIDIA H200"

}  // namespace warpweave::bench
