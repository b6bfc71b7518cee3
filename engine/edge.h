// The edge of the library: every call of the public headers throws Error and nothing else.
#pragma once

#include <new>
#include <stdexcept>
#include <string>

#include "warpweave/error.h"

namespace warpweave {

// action(), with memory refused anywhere inside it as Error(device). (Where not even the words of the message
// can be had, std::bad_alloc goes on to the caller.)
template <class Action>
decltype(auto) at_edge(const char* doing, const Action& action) {
  try {
    return action();
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::device, std::string("out of memory while ") + doing);
  } catch (const std::length_error&) {  // a container asked for more than can be addressed
    throw Error(ErrorCode::device, std::string("out of memory while ") + doing);
  }
}

}  // namespace warpweave
