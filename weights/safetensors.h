// Reader of the safetensors format (https://huggingface.co/docs/safetensors, "Format").
//
//   8 bytes    N, the length of the header, little-endian
//   N bytes    JSON: {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [BEGIN, END]}, ...}, UTF-8,
//   from
//              '{' on, maybe padded with spaces; "__metadata__" holds a map of strings
//   the rest   the tensors' bytes, little-endian, row-major; BEGIN and END count from here
//
// Every rule is checked before any tensor can be asked for: JSON without duplicate or unknown keys, known
// dtype, END - BEGIN = shape x itemsize, and ranges that, sorted, start at 0, touch without overlap or hole,
// and end at the file's end. Where the official reader tolerates more (duplicate keys, unknown keys, null
// metadata) this one refuses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/file.h"
#include "warpweave/tensor.h"

namespace warpweave::weights {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;                 // as the format names it: "F32", "I64", "F8_E4M3", ...
  std::vector<std::int64_t> shape;   // empty for a scalar
  std::uint64_t begin = 0, end = 0;  // bytes in the data section
};

// What the header says, checked. Entries are sorted by their place in the file.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  // byte of the file at which the data section starts
};

// Checks a whole file in memory. Throws Error(input) "FILE: what is wrong".
SafetensorsHeader parse_safetensors(std::span<const std::byte> bytes, const std::filesystem::path& file);

// The engine's type for a dtype of the format; nothing for those it does not compute with (I8, F8_E4M3, ...).
std::optional<DType> engine_type(std::string_view dtype) noexcept;
// The inverse.
std::string_view safetensors_dtype(DType type) noexcept;

// A file mapped into memory. Its entries stay valid as long as the object.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const noexcept { return path_; }
  const std::vector<SafetensorsEntry>& entries() const noexcept { return header_.entries; }
  const std::map<std::string, std::string>& metadata() const noexcept { return header_.metadata; }
  const SafetensorsEntry* find(std::string_view name) const noexcept;              // null when there is none
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const noexcept;  // of any alignment
  // A copy, bit for bit. Throws Error(input) when the engine has no such element type.
  Tensor read(const SafetensorsEntry& entry) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, std::size_t> index_;  // by name, of header_.entries
};

}  // namespace warpweave::weights
