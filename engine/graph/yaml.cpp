#include "graph/yaml.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>
#include <system_error>
#include <unordered_map>

#include "graph/text.h"
#include "io/file.h"
#include "io/text.h"
#include "warpweave/error.h"

namespace warpweave::graph::yaml {
namespace {

int line_of(const YAML::Mark& mark) { return std::max(mark.line, 0) + 1; }

// Line breaks, terminal escapes, ...: C0, DEL and C1 (U+0080 .. U+009F) in UTF-8.
bool has_control_characters(std::string_view text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto c = static_cast<unsigned char>(text[at]);
    if (c < 0x20 || c == 0x7F) return true;
    if (c == 0xC2 && at + 1 < text.size() && static_cast<unsigned char>(text[at + 1]) < 0xA0) return true;
  }
  return false;
}

void check_text(std::string_view text, std::string_view file, const Limits& limits) {
  if (text.size() > limits.file_bytes) {
    Place{file, 0, {}}.fail(
        fmt::format("larger than {} MiB, which no model file needs to be", limits.file_bytes >> 20));
  }
  int line = 1;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '\n') ++line;
    const std::size_t length = utf8_length(text.substr(at));
    if (length == 0) {
      Place{file, line, {}}.fail(fmt::format("byte 0x{:02x} is not UTF-8; a model file is YAML in UTF-8",
                                             static_cast<unsigned char>(c)));
    }
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7F) {
      Place{file, line, {}}.fail(fmt::format("control character 0x{:02x}; a model file is YAML text",
                                             static_cast<unsigned char>(c)));
    }
    at += length;
  }
}

class TreeBuilder final : public YAML::EventHandler {
 public:
  TreeBuilder(Document& document, std::string_view file, const Limits& limits)
      : document_(document), file_(file), limits_(limits) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Value& value = create(Kind::null, line_of(mark), anchor);
    add(value, value.line);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    const int line = line_of(mark);
    refuse_tag(tag, line);
    if (text.size() > limits_.scalar_bytes) {
      fail(line, fmt::format("{} is longer than {} bytes", in_quotes(text), limits_.scalar_bytes));
    }
    if (has_control_characters(text)) {
      fail(line, "a line break or another control character in a name or value; each is a single line");
    }
    Value& value = create(Kind::scalar, line, anchor);
    value.text = text;
    value.in_quotes = tag == "!";
    add(value, line);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const int line = line_of(mark);
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) fail(line, "an alias to an anchor that is not defined");
    const Value* value = found->second;
    const auto open = [&](const Open& o) { return o.value == value; };
    if (std::any_of(open_.begin(), open_.end(), open)) fail(line, "an alias inside its own anchor");
    add(*value, line);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    start(Kind::sequence, line_of(mark), tag, anchor);
  }
  void OnSequenceEnd() override { end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    start(Kind::map, line_of(mark), tag, anchor);
  }
  void OnMapEnd() override { end(); }

 private:
  struct Open {
    Value* value;
    int line;              // where the value stands
    bool has_key = false;  // of a map: a key waits for its value
    std::string key = {};
    int key_line = 0;
    std::unordered_map<std::string, int> keys = {};  // of a map: key -> line
  };

  [[noreturn]] void fail(int line, const std::string& message) const { Place{file_, line, {}}.fail(message); }

  // yaml-cpp gives "?" to plain nodes and "!" to quoted scalars.
  void refuse_tag(const std::string& tag, int line) const {
    if (tag.empty() || tag == "?" || tag == "!") return;
    fail(line, fmt::format("tag {}: tags have no meaning in a model file; remove it", in_quotes(tag)));
  }

  Value& create(Kind kind, int line, YAML::anchor_t anchor) {
    if (document_.nodes.size() >= limits_.nodes) fail(line, too_many());
    Value& value = document_.nodes.emplace_back();
    value.kind = kind;
    value.line = line;
    if (anchor != YAML::NullAnchor) anchors_[anchor] = &value;
    return value;
  }

  std::string too_many() const {
    return fmt::format("more than {} nodes (aliases count where they are used); no model file needs them",
                       limits_.nodes);
  }

  void start(Kind kind, int line, const std::string& tag, YAML::anchor_t anchor) {
    refuse_tag(tag, line);
    if (!open_.empty() && open_.back().value->kind == Kind::map && !open_.back().has_key) {
      fail(line, "a list or map as a key; keys are words");
    }
    if (open_.size() >= limits_.depth) too_deep(line);
    open_.push_back({&create(kind, line, anchor), line});
  }

  [[noreturn]] void too_deep(int line) const {
    fail(line, fmt::format("nested deeper than {} levels", limits_.depth));
  }

  void end() {
    const Open done = std::move(open_.back());
    open_.pop_back();
    add(*done.value, done.line);
  }

  void add(const Value& value, int line) {
    if (open_.empty()) {
      document_.root = &value;
      return;
    }
    Open& top = open_.back();
    if (top.value->kind == Kind::map && !top.has_key) {
      take_key(top, value, line);
      return;
    }
    if (open_.size() + value.height > limits_.depth) too_deep(line);
    top.value->height = std::max(top.value->height, value.height + 1);
    top.value->size += value.size;  // both are at most limits_.nodes: no overflow
    if (top.value->size > limits_.nodes) fail(line, too_many());
    if (top.value->kind == Kind::sequence) {
      top.value->items.push_back(&value);
    } else {
      top.value->entries.push_back({std::move(top.key), top.key_line, &value});
      top.has_key = false;
    }
  }

  void take_key(Open& map, const Value& key, int line) const {
    if (key.kind != Kind::scalar) fail(line, "an empty key, a list or a map as a key; keys are words");
    if (key.text == "<<" && !key.in_quotes) {
      fail(line, "merge keys (<<) are not supported; write the keys out, or alias a whole map");
    }
    const auto [known, is_new] = map.keys.emplace(key.text, line);
    if (!is_new) {
      fail(line, fmt::format("key {} occurs twice in one map, first on line {}; remove one",
                             in_quotes(key.text), known->second));
    }
    map.has_key = true;
    map.key = key.text;
    map.key_line = line;
  }

  Document& document_;
  std::string_view file_;
  const Limits& limits_;
  std::vector<Open> open_;
  std::unordered_map<YAML::anchor_t, const Value*> anchors_;
};

}  // namespace

Document parse(const std::string& text, std::string_view file, const Limits& limits) {
  check_text(text, file, limits);
  Document document;
  TreeBuilder builder(document, file, limits);
  try {
    // yaml-cpp takes a quote that the end of the file leaves open; a document end inside a quote is its
    // error.
    std::istringstream stream(text + "\n...\n");
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    Document second;
    TreeBuilder rest(second, file, limits);
    if (parser.HandleNextDocument(rest)) {
      Place{file, second.root != nullptr ? second.root->line : 0, {}}.fail(
          "a second YAML document; a model file holds one");
    }
  } catch (const YAML::Exception& e) {
    const auto lines = static_cast<int>(std::count(text.begin(), text.end(), '\n')) + 1;
    Place{file, std::min(line_of(e.mark), lines), {}}.fail(fmt::format("not valid YAML: {}", e.msg));
  }
  if (document.root == nullptr || document.root->kind == Kind::null) {
    Place{file, 1, {}}.fail("no content; expected a map with input and layers");
  }
  return document;
}

std::string read_file(const std::string& file, const Limits& limits) {
  const Place place{file, 0, {}};
  // Opened first and examined then, so that nobody can put a FIFO in its place between the two; O_NONBLOCK: a
  // FIFO without a writer must not be waited for.
  const Descriptor descriptor(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (descriptor.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) place.fail("no such file; expected a YAML model file");
    place.fail(fmt::format("cannot be opened: {}", std::generic_category().message(errno)));
  }
  struct stat status = {};
  if (::fstat(descriptor.get(), &status) != 0)
    place.fail(fmt::format("cannot be examined: {}", std::generic_category().message(errno)));
  if (S_ISDIR(status.st_mode)) place.fail("a directory; expected a YAML model file");
  if (!S_ISREG(status.st_mode)) place.fail("not a regular file; expected a YAML model file");
  std::string text;
  std::array<char, 1 << 16> block;
  while (text.size() <= limits.file_bytes) {  // parse() refuses a longer one
    const ssize_t count = ::read(descriptor.get(), block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) place.fail(fmt::format("cannot be read: {}", std::generic_category().message(errno)));
    if (count == 0) break;
    text.append(block.data(), static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace warpweave::graph::yaml
