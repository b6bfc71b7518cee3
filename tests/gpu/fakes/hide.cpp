// Preloaded: opening a library whose name contains one of WARPWEAVE_TEST_HIDE's parts (separated by commas)
// fails, as if it were not installed.
#include <dlfcn.h>

#include <cstdlib>
#include <sstream>
#include <string>

extern "C" void* dlopen(const char* name, int flags) noexcept {
  const char* hidden = std::getenv("WARPWEAVE_TEST_HIDE");
  if (name && hidden) {
    std::istringstream parts(hidden);
    for (std::string part; std::getline(parts, part, ',');) {
      if (std::string(name).find(part) != std::string::npos) return nullptr;
    }
  }
  using Open = void* (*)(const char*, int);
  static const auto real = reinterpret_cast<Open>(dlsym(RTLD_NEXT, "dlopen"));
  return real(name, flags);
}
