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

unsigned byte(std::string_view text, std::size_t at) { return static_cast<unsigned char>(text[at]); }

// Bytes of the control character at `at`: 1 for C0 and DEL, 2 for C1 (U+0080 .. U+009F), 0 for all else.
std::size_t control_length(std::string_view text, std::size_t at) {
  const unsigned b = byte(text, at);
  if (b < 0x20 || b == 0x7F) return 1;
  return b == 0xC2 && at + 1 < text.size() && byte(text, at + 1) < 0xA0 ? 2 : 0;
}

}  // namespace

void Place::fail(std::string_view message) const {
  throw Error(ErrorCode::input, fmt::format("{}{}: {}{}{}", file, line > 0 ? fmt::format(":{}", line) : "",
                                            key, key.empty() ? "" : ": ", message));
}

bool has_control_characters(std::string_view text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (control_length(text, at) > 0) return true;
  }
  return false;
}

std::string quote(std::string_view text) {
  constexpr std::size_t longest = 60;
  bool cut = false;
  if (text.size() > longest) {
    std::size_t end = longest;
    while (end > 0 && (byte(text, end) & 0xC0) == 0x80) --end;  // not inside a character
    text = text.substr(0, end);
    cut = true;
  }
  std::string s = "'";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = control_length(text, at);
    if (length == 0) {
      s += text[at++];
    } else {
      s += text[at] == '\n'   ? "\\n"
           : text[at] == '\t' ? "\\t"
                              : fmt::format("\\x{:02x}", byte(text, at + length - 1));
      at += length;
    }
  }
  return s + (cut ? "...'" : "'");
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
