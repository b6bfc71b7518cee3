// A YAML document as a small immutable tree with line numbers, read safely: yaml-cpp finds the events, this
// file keeps what the model file needs and refuses the rest.
//
// Refused, each with file and line: more than one document, tags, keys that are not words, a key twice in one
// map, merge keys (<<), text that is not UTF-8, keys and values with line breaks or control characters, and
// whatever exceeds the limits below. Anchors and aliases are legal; an alias shares the node, and the limits
// on depth and size count it expanded.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace warpweave::graph::yaml {

struct Limits {
  std::size_t file_bytes = std::size_t{16} << 20;
  std::size_t scalar_bytes = 1024;  // of one key or value
  std::size_t nodes = 1'000'000;    // with aliases expanded
  std::size_t depth = 64;           // with aliases expanded
};

enum class Kind { null, scalar, sequence, map };

struct Value;

struct Entry {
  std::string key;
  int line = 0;
  const Value* value = nullptr;
};

struct Value {
  Kind kind = Kind::null;
  int line = 0;            // 1-based
  std::string text;        // of a scalar
  bool in_quotes = false;  // a scalar written with quotes (or as a | or > block): never a number or true
  std::vector<const Value*> items;   // of a sequence
  std::vector<Entry> entries;        // of a map, in the file's order, keys distinct
  std::size_t height = 1, size = 1;  // of the tree below, itself included, aliases expanded
};

// Owns its nodes; flat, so that nothing recurses when it goes.
struct Document {
  std::deque<Value> nodes;
  const Value* root = nullptr;  // never of Kind::null
};

// Throws Error(input), "FILE:LINE: ...".
Document parse(const std::string& text, std::string_view file, const Limits& limits = {});

// The whole of a regular file, at most `limits.file_bytes`. Throws Error(input), "FILE: ...".
std::string read_file(const std::string& file, const Limits& limits = {});

}  // namespace warpweave::graph::yaml
