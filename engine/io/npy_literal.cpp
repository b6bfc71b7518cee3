#include "io/npy_literal.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

#include "io/text.h"

namespace warpweave {
namespace {

class LiteralParser {
 public:
  explicit LiteralParser(std::string_view text) : text_(text) {}

  NpyLiteral parse() {
    NpyLiteral result;
    bool descr = false, order = false, shape = false;
    expect('{', "a dict");
    while (!accept('}')) {
      const std::string key = string("a key");
      expect(':', "':' after a key");
      if (key == "descr") {
        once(descr, key);
        result.descr = descr_value();
      } else if (key == "fortran_order") {
        once(order, key);
        result.fortran_order = boolean();
      } else if (key == "shape") {
        once(shape, key);
        result.shape = tuple();
      } else {
        throw NpyFault(fmt::format("unknown key {} in the header, expected descr, fortran_order and shape",
                                   in_quotes(key)));
      }
      if (!accept(',')) {
        expect('}', "',' or '}' after a value");
        break;
      }
    }
    skip_space();
    if (!text_.empty()) fail("nothing after the dict");
    if (!descr) throw NpyFault("the header lacks the key 'descr'");
    if (!order) throw NpyFault("the header lacks the key 'fortran_order'");
    if (!shape) throw NpyFault("the header lacks the key 'shape'");
    return result;
  }

 private:
  [[noreturn]] void fail(std::string_view expected) const {
    throw NpyFault(fmt::format("malformed header, expected {} at {}", expected,
                               text_.empty() ? "its end" : in_quotes(text_.substr(0, 24))));
  }

  static void once(bool& seen, const std::string& key) {
    if (seen) throw NpyFault(fmt::format("duplicate key '{}' in the header", key));
    seen = true;
  }

  void skip_space() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\n' || text_[0] == '\t'))
      text_.remove_prefix(1);
  }

  bool accept(char c) {
    skip_space();
    if (text_.empty() || text_[0] != c) return false;
    text_.remove_prefix(1);
    return true;
  }

  void expect(char c, std::string_view what) {
    if (!accept(c)) fail(what);
  }

  // No escapes: no key and no descr that we take has any.
  std::string string(std::string_view what) {
    skip_space();
    if (text_.empty() || (text_[0] != '\'' && text_[0] != '"')) fail(what);
    const std::size_t end = text_.find(text_[0], 1);
    if (end == std::string_view::npos) fail("the end of a string");
    const std::string_view content = text_.substr(1, end - 1);
    if (content.find('\\') != std::string_view::npos) fail("a string without escapes");
    text_.remove_prefix(end + 1);
    return std::string(content);
  }

  std::string descr_value() {
    skip_space();
    if (!text_.empty() && (text_[0] == '[' || text_[0] == '('))
      throw NpyFault("a structured dtype cannot be used, expected float16, float32, float64, uint8 or bool");
    return string("the dtype as a string");
  }

  bool boolean() {
    skip_space();
    for (const std::string_view word : {"True", "False"}) {
      if (!text_.starts_with(word)) continue;
      text_.remove_prefix(word.size());
      return word == "True";
    }
    fail("True or False");
  }

  // (), (3,), (3, 4): as in Python, one size needs its comma.
  std::vector<std::int64_t> tuple() {
    constexpr std::size_t kMaxRank = 64;  // NumPy's
    std::vector<std::int64_t> sizes;
    expect('(', "a tuple of sizes");
    while (!accept(')')) {
      sizes.push_back(size());
      if (sizes.size() > kMaxRank) throw NpyFault(fmt::format("the shape has more than {} sizes", kMaxRank));
      if (accept(',')) continue;
      if (sizes.size() < 2) fail("',' after the only size of a tuple");
      expect(')', "',' or ')' after a size");
      break;
    }
    return sizes;
  }

  std::int64_t size() {
    skip_space();
    if (text_.starts_with('-')) throw NpyFault("the shape has a negative size");
    std::int64_t value = 0;
    const auto [end, status] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (status == std::errc::result_out_of_range)
      throw NpyFault("the shape has a size that overflows 63 bits");
    if (status != std::errc()) fail("an integer");
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return value;
  }

  std::string_view text_;  // what is left
};

}  // namespace

NpyLiteral parse_npy_literal(std::string_view text) { return LiteralParser(text).parse(); }

}  // namespace warpweave
