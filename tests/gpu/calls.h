// Which calls the library makes. The linker sends them here first (--wrap, tests/gpu/CMakeLists.txt): calls
// of the CUDA runtime that allocate, free, wait or set something up, host allocations by operator new, dlopen
// and access.
#pragma once

#include <string>
#include <vector>

namespace warpweave::gpu_test {

// Calls since it was made, by name, of every thread. One at a time.
class CountedCalls {
 public:
  CountedCalls();
  ~CountedCalls();
  CountedCalls(const CountedCalls&) = delete;
  CountedCalls& operator=(const CountedCalls&) = delete;
  std::vector<std::string> made() const;
};

// While it lives, libraries whose path contains `part` cannot be opened, as if they were not installed, or as
// if their files were broken.
class HiddenLibrary {
 public:
  enum class As { absent, broken };
  explicit HiddenLibrary(const std::string& part, As as = As::absent);
  ~HiddenLibrary();
  HiddenLibrary(const HiddenLibrary&) = delete;
  HiddenLibrary& operator=(const HiddenLibrary&) = delete;
};

}  // namespace warpweave::gpu_test
