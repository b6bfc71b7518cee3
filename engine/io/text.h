// Names from files and command lines, made safe to show in a one-line message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace warpweave {

// Control characters and bytes that are not UTF-8 escaped as \xNN; beyond about `limit` bytes cut with "...".
std::string printable(std::string_view text, std::size_t limit = 4096);

// 'name', printable, at most about 120 bytes.
std::string in_quotes(std::string_view name);

// Bytes of the UTF-8 character at the start of `text` (not empty); 0 when they are none (RFC 3629).
std::size_t utf8_length(std::string_view text) noexcept;

}  // namespace warpweave
