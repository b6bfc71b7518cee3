// NVIDIA's run-time compiler, opened at run time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/dynamic_library.h"

namespace warpweave::cuda {

class Nvrtc {
 public:
  struct Output {
    std::string name;                // lowered name of the expression
    std::string log;                 // compiler and ptxas messages
    std::vector<char> machine_code;  // a cubin
  };

  // Null when no library is found, with the reason in words.
  static std::unique_ptr<const Nvrtc> open(std::string& missing);
  // The version that open() will find, as far as files tell it, or empty.
  static std::string installed_version();

  // Compiles `#include "FILE"` over the embedded kernels/ and instantiates `expression`. `options` name a
  // real architecture. Throws Error(internal) with the log when it does not compile, Error(device) when this
  // NVRTC does not know the architecture.
  Output compile(const std::string& file, const std::string& expression,
                 const std::vector<std::string>& options) const;
  const std::string& version() const noexcept { return version_; }  // "13.0"
  const std::string& path() const noexcept { return library_->path(); }

 private:
  explicit Nvrtc(std::unique_ptr<DynamicLibrary> library);

  // As nvrtc.h declares them; a program is an opaque pointer and a status of 0 is success.
  struct Functions {
    int (*version)(int*, int*);
    const char* (*error_string)(int);
    int (*create_program)(void**, const char*, const char*, int, const char* const*, const char* const*);
    int (*destroy_program)(void**);
    int (*add_name_expression)(void*, const char*);
    int (*compile_program)(void*, int, const char* const*);
    int (*lowered_name)(void*, const char*, const char**);
    int (*log_size)(void*, std::size_t*);
    int (*log)(void*, char*);
    int (*cubin_size)(void*, std::size_t*);
    int (*cubin)(void*, char*);
  };
  std::unique_ptr<DynamicLibrary> library_;
  Functions call_{};
  std::string version_;
};

}  // namespace warpweave::cuda
