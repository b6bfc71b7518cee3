// A shape as messages show it: "[2, 3, 4]", "[]" for a scalar.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace warpweave {

inline std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text += "]";
}

}  // namespace warpweave
