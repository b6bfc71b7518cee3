// WARPWEAVE_VERBOSE=1: what the engine does, and how long that takes, on standard error.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace warpweave::cuda {

inline bool verbose() {
  const char* value = std::getenv("WARPWEAVE_VERBOSE");
  return value && *value && *value != '0';
}

// Tells, where verbose, how long something took: "warpweave: time: 12.3 ms opening NVRTC".
class Phase {
 public:
  explicit Phase(std::string what) : what_(verbose() ? std::move(what) : std::string()) {}
  ~Phase() { end(); }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

  double milliseconds() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_).count();
  }
  void end() {
    if (!what_.empty()) std::fprintf(stderr, "warpweave: time: %.1f ms %s\n", milliseconds(), what_.c_str());
    what_.clear();
  }

 private:
  std::string what_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace warpweave::cuda
