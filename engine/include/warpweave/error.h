// One exception type for everything that can go wrong. Memory or threads refused anywhere are Error(device)
// too; only where not even the words of the message can be had, std::bad_alloc. The failed call leaves
// nothing behind, and what it was made of (model, engine, session, file) is as good as before.
#pragma once

#include <stdexcept>
#include <string>

namespace warpweave {

// The numeric value is the exit status of the command line.
enum class ErrorCode {
  internal = 1,  // a fault of the library itself
  input = 2,     // bad usage, file, configuration, weights or grid
  device = 3,    // the device, its memory or the named plan cannot do it
};

// what() is one line, "FILE[:LINE]: what is wrong, and what would be right" where a file is at fault.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace warpweave
