#include "cli/numbers.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <system_error>

namespace warpweave::cli {
namespace {

// Whether the whole text is one number of this type; from_chars takes no sign but '-', no blank and no 0x.
template <class T>
bool read(const std::string& text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

}  // namespace

CLI::Validator whole_number(std::uint64_t most) {
  return CLI::Validator(
      [most](std::string& text) {
        std::uint64_t value = 0;
        const bool padded = text.size() > 1 && text[0] == '0';
        if (read(text, value) && !padded && value <= most) return std::string();
        return fmt::format("'{}' is not a number from 0 to {}, in plain digits", text, most);
      },
      "");
}

CLI::Validator finite_number() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        if (read(text, value) && std::isfinite(value)) return std::string();
        return fmt::format("'{}' is not a number: a number is needed", text);
      },
      "");
}

void refuse_empty_values(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_type_size() == 0) continue;  // a flag
    option->check(CLI::Validator(
        [](std::string& text) { return text.empty() ? std::string("the value is empty") : std::string(); },
        ""));
  }
}

}  // namespace warpweave::cli
