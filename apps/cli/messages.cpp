#include "cli/messages.h"

#include <cstdio>

namespace warpweave::cli {
namespace {

void print_line(std::string_view start, std::string_view message) noexcept {
  std::fwrite(start.data(), 1, start.size(), stderr);
  for (const char c : message) {
    const auto u = static_cast<unsigned char>(c);
    std::fputc(u < 0x20 || u == 0x7f ? ' ' : c, stderr);
  }
  std::fputc('\n', stderr);
}

}  // namespace

void print_error(std::string_view message) noexcept { print_line("warpweave: error: ", message); }
void print_notice(std::string_view message) noexcept { print_line("warpweave: ", message); }

}  // namespace warpweave::cli
