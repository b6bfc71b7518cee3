#include "graph/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "warpweave/error.h"

namespace warpweave::graph {
namespace {

// Optimal string alignment distance: insertions, deletions, substitutions, swaps of neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

// Case and the choice of word separator are not what a reader looks for.
std::string folded(std::string_view text) {
  std::string s(text);
  for (char& c : s) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '-' || c == ' ') c = '_';
  }
  return s;
}

}  // namespace

void Place::fail(std::string_view message) const {
  throw Error(ErrorCode::input, fmt::format("{}{}: {}{}{}", file, line > 0 ? fmt::format(":{}", line) : "",
                                            key, key.empty() ? "" : ": ", message));
}

std::string join(std::span<const std::string_view> words, std::string_view last_joint) {
  std::string s;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) s += i + 1 == words.size() ? last_joint : ", ";
    s += words[i];
  }
  return s;
}

std::optional<std::string_view> nearest(std::string_view word, std::span<const std::string_view> candidates) {
  constexpr std::size_t longest = 64;  // nobody misspells a longer name
  if (word.empty() || word.size() > longest) return std::nullopt;
  const std::string w = folded(word);
  std::size_t best = std::max<std::size_t>(1, (w.size() + 1) / 3) + 1;
  std::optional<std::string_view> found;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(w, folded(candidate));
    if (distance < best) {
      best = distance;
      found = candidate;
    }
  }
  if (found || w.size() < 3) return found;
  for (const std::string_view candidate : candidates) {
    if (candidate.find(w) != std::string_view::npos) return candidate;
  }
  return std::nullopt;
}

std::string hint(std::string_view word, std::span<const std::string_view> candidates) {
  const auto name = nearest(word, candidates);
  return name ? fmt::format(", did you mean '{}'?", *name) : "";
}

}  // namespace warpweave::graph
