// Typed access to one map of a model file. Every fault is one Error(input), "FILE:LINE: layer.key: expected
// ..., got ...".
//
// Scalars are read strictly, so that nothing means something else than it looks like: an integer is decimal
// digits (no sign, no leading zero, not 4.0, not 1e3, not "4"); a number is decimal with an optional
// exponent, finite; a flag is true or false. Words (axis, activation, ...) may be in quotes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/text.h"
#include "graph/yaml.h"

namespace warpweave::graph {

// Sane sizes: products of two and of three of them still fit in 64 bits.
inline constexpr std::int64_t max_channels = std::int64_t{1} << 20;  // also heads, hidden
inline constexpr std::int64_t max_side = std::int64_t{1} << 24;      // rows, columns of tables

struct Range {  // both ends included
  double least = std::numeric_limits<double>::lowest();
  double most = std::numeric_limits<double>::max();
};

class Params {
 public:
  // `place.key` is what the map is called in messages; `implied` are keys that the caller takes itself.
  // A null value (nothing written) counts as an empty map. Throws when `map` is something else.
  Params(const yaml::Value& map, Place place, std::initializer_list<std::string_view> implied = {});

  // Declares the legal keys; must come first. A reserved key has a meaning that is coming: it is refused by
  // name. Throws on any other key, with the nearest legal one.
  void allow(std::initializer_list<std::string_view> keys,
             std::initializer_list<std::pair<std::string_view, std::string_view>> reserved = {});

  bool has(std::string_view key) const { return find(key) != nullptr; }

  // Without a default the key must be there.
  std::int64_t integer(std::string_view key, std::int64_t most = max_channels,
                       std::optional<std::int64_t> fallback = std::nullopt) const;  // 1 .. most
  double number(std::string_view key, Range range, double fallback) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string word(std::string_view key) const;  // any scalar; must be there
  // One of `choices`.
  template <class E>
  E choice(std::string_view key, std::initializer_list<std::pair<std::string_view, E>> choices,
           std::optional<E> fallback = std::nullopt) const {
    std::vector<std::string_view> names;
    for (const auto& [name, value] : choices) names.push_back(name);
    if (fallback && !has(key)) return *fallback;
    return std::data(choices)[choose(key, names)].second;
  }
  // A map within; it must be there.
  Params child(std::string_view key) const;
  // The raw value, null where the key is not there.
  const yaml::Entry* find(std::string_view key) const;

  const Place& place() const noexcept { return place_; }
  Place place(std::string_view key) const;  // the key's line, or the map's where the key is not there
  [[noreturn]] void fail(std::string_view key, std::string_view message) const { place(key).fail(message); }

 private:
  std::size_t choose(std::string_view key, std::span<const std::string_view> names) const;
  const yaml::Value& require(std::string_view key, std::string_view expected) const;
  [[noreturn]] void mismatch(std::string_view key, std::string_view expected, const yaml::Value& got) const;

  const yaml::Value* map_;
  Place place_;
  std::vector<std::string_view> legal_;
  bool checked_ = false;
};

// What a value is, in words: "'four'", "a list", "nothing".
std::string in_words(const yaml::Value& value);

}  // namespace warpweave::graph
