// Words for error messages: where something stands, and what was probably meant.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace warpweave::graph {

// A place in a model file. `key` is the dotted path that messages name, "axial_attention.heads"; it may be
// empty.
struct Place {
  std::string_view file;
  int line = 0;  // 1-based; 0 leaves it out
  std::string key;

  // Throws Error(input): "FILE:LINE: KEY: message".
  [[noreturn]] void fail(std::string_view message) const;
};

// "a, b, c", or "a, b or c" where the last joint is " or ".
std::string join(std::span<const std::string_view> words, std::string_view last_joint = ", ");

// The candidate that `word` was most likely meant to be: least edits (Damerau-Levenshtein with adjacent
// transpositions), at most a third of the word; or one that contains the word. Nothing where none is close.
std::optional<std::string_view> nearest(std::string_view word, std::span<const std::string_view> candidates);

// ", did you mean 'heads'?" or nothing.
std::string hint(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace warpweave::graph
