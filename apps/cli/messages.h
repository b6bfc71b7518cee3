// Lines on standard error.
#pragma once

#include <string_view>

namespace warpweave::cli {

// "warpweave: error: MESSAGE", always one line: control characters are replaced by spaces. Allocates nothing.
void print_error(std::string_view message) noexcept;

// "warpweave: MESSAGE", likewise.
void print_notice(std::string_view message) noexcept;

}  // namespace warpweave::cli
