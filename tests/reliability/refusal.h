// Memory refused at will: malloc and its kin (glibc, without a sanitizer) and operator new fail when told to.
#pragma once

namespace warpweave::reliability {

enum class Refuse {
  once,     // one allocation fails, the ones after it succeed
  for_good  // it and all after it fail
};

// While it lives, this thread's allocations after the first `successes` are refused.
class Refusal {
 public:
  Refusal(long successes, Refuse how) noexcept;
  ~Refusal();
  Refusal(const Refusal&) = delete;
  Refusal& operator=(const Refusal&) = delete;
};

bool refused_any() noexcept;     // since the last Refusal began
long live_blocks() noexcept;     // taken from operator new and not given back, by all threads
bool refuses_malloc() noexcept;  // whether malloc is replaced here, beside operator new

}  // namespace warpweave::reliability
