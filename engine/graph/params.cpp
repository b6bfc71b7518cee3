#include "graph/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "io/text.h"
#include "warpweave/error.h"

namespace warpweave::graph {
namespace {

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_integer(std::string_view text) { return is_digits(text) && (text.size() == 1 || text[0] != '0'); }

// Decimal, optional fraction and exponent: what from_chars takes, less "inf" and "nan".
std::optional<double> decimal(std::string_view text) {
  if (text.empty() || text.find_first_not_of("0123456789.+-eE") != std::string_view::npos)
    return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string in_words(const yaml::Value& value) {
  switch (value.kind) {
    case yaml::Kind::null:
      return "nothing";
    case yaml::Kind::sequence:
      return "a list";
    case yaml::Kind::map:
      return "a map";
    case yaml::Kind::scalar:
      break;
  }
  return value.in_quotes ? "the text " + in_quotes(value.text) + " in quotes" : in_quotes(value.text);
}

Params::Params(const yaml::Value& map, Place place, std::initializer_list<std::string_view> implied)
    : map_(&map), place_(std::move(place)), legal_(implied) {
  if (map.kind != yaml::Kind::map && map.kind != yaml::Kind::null) {
    place_.fail(fmt::format("expected a map of parameters, got {}", in_words(map)));
  }
}

void Params::allow(std::initializer_list<std::string_view> keys,
                   std::initializer_list<std::pair<std::string_view, std::string_view>> reserved) {
  legal_.insert(legal_.begin(), keys.begin(), keys.end());
  checked_ = true;
  for (const yaml::Entry& entry : map_->entries) {
    const auto is_key = [&](std::string_view key) { return key == entry.key; };
    if (std::any_of(legal_.begin(), legal_.end(), is_key)) continue;
    const Place at{place_.file, entry.line, place_.key};
    for (const auto& [name, purpose] : reserved) {
      if (name == entry.key) {
        at.fail(fmt::format("key '{}' is reserved for {}; not supported yet, remove it", name, purpose));
      }
    }
    at.fail(fmt::format("unknown key {}{} (legal keys: {})", in_quotes(entry.key), hint(entry.key, legal_),
                        join(legal_)));
  }
}

const yaml::Entry* Params::find(std::string_view key) const {
  if (!checked_ || std::find(legal_.begin(), legal_.end(), key) == legal_.end()) {
    throw Error(ErrorCode::internal, fmt::format("{}: key '{}' was not declared", place_.key, key));
  }
  const auto found = std::find_if(map_->entries.begin(), map_->entries.end(),
                                  [&](const yaml::Entry& entry) { return entry.key == key; });
  return found == map_->entries.end() ? nullptr : &*found;
}

Place Params::place(std::string_view key) const {
  const yaml::Entry* entry = find(key);
  return {place_.file, entry != nullptr ? entry->line : place_.line,
          place_.key.empty() ? std::string(key) : fmt::format("{}.{}", place_.key, key)};
}

const yaml::Value& Params::require(std::string_view key, std::string_view expected) const {
  const yaml::Entry* entry = find(key);
  if (entry == nullptr) place_.fail(fmt::format("missing key '{}', {}", key, expected));
  return *entry->value;
}

void Params::mismatch(std::string_view key, std::string_view expected, const yaml::Value& got) const {
  fail(key, fmt::format("expected {}, got {}", expected, in_words(got)));
}

std::int64_t Params::integer(std::string_view key, std::int64_t most,
                             std::optional<std::int64_t> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const yaml::Value& value = require(key, "a positive integer");
  if (value.kind != yaml::Kind::scalar || value.in_quotes || !is_integer(value.text)) {
    mismatch(key, "a positive integer", value);
  }
  std::int64_t number = 0;
  const char* end = value.text.data() + value.text.size();
  const bool overflows = std::from_chars(value.text.data(), end, number).ec != std::errc{};
  if (!overflows && number == 0) mismatch(key, "a positive integer", value);
  if (overflows || number > most) mismatch(key, fmt::format("an integer from 1 to {}", most), value);
  return number;
}

double Params::number(std::string_view key, Range range, double fallback) const {
  const yaml::Entry* entry = find(key);
  if (entry == nullptr) return fallback;
  const yaml::Value& value = *entry->value;
  const std::string expected = fmt::format("a number from {:g} to {:g}", range.least, range.most);
  const bool plain = value.kind == yaml::Kind::scalar && !value.in_quotes;
  const std::optional<double> number = plain ? decimal(value.text) : std::nullopt;
  if (!number || !std::isfinite(*number) || *number < range.least || *number > range.most) {
    mismatch(key, expected, value);
  }
  return *number;
}

bool Params::flag(std::string_view key, bool fallback) const {
  const yaml::Entry* entry = find(key);
  if (entry == nullptr) return fallback;
  const yaml::Value& value = *entry->value;
  if (value.kind == yaml::Kind::scalar && !value.in_quotes) {
    if (value.text == "true") return true;
    if (value.text == "false") return false;
  }
  mismatch(key, "true or false", value);
}

std::string Params::word(std::string_view key) const {
  const yaml::Value& value = require(key, "a word");
  if (value.kind != yaml::Kind::scalar || value.text.empty()) mismatch(key, "a word", value);
  return value.text;
}

std::size_t Params::choose(std::string_view key, std::span<const std::string_view> names) const {
  const std::string expected = join(names, " or ");
  const yaml::Value& value = require(key, expected);
  if (value.kind != yaml::Kind::scalar) mismatch(key, expected, value);
  const auto found = std::find(names.begin(), names.end(), value.text);
  if (found == names.end()) {
    fail(key, fmt::format("expected {}, got {}{}", expected, in_quotes(value.text), hint(value.text, names)));
  }
  return static_cast<std::size_t>(found - names.begin());
}

Params Params::child(std::string_view key) const {
  return Params(require(key, "a map of parameters"), place(key));
}

}  // namespace warpweave::graph
