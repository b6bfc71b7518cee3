#include "weights/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "io/text.h"
#include "numeric/shape_text.h"
#include "weights/safetensors_json.h"

namespace warpweave::weights {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors are stored little-endian and used as they are");

struct DTypeFacts {
  std::string_view name;
  std::uint64_t bits;  // per element; below 8, elements are packed
  std::optional<DType> type;
};

constexpr std::array kDTypes = {
    DTypeFacts{"BOOL", 8, DType::boolean},
    DTypeFacts{"U8", 8, DType::u8},
    DTypeFacts{"F16", 16, DType::f16},
    DTypeFacts{"BF16", 16, DType::bf16},
    DTypeFacts{"F32", 32, DType::f32},
    DTypeFacts{"F64", 64, DType::f64},
    DTypeFacts{"I8", 8, {}},
    DTypeFacts{"I16", 16, {}},
    DTypeFacts{"U16", 16, {}},
    DTypeFacts{"I32", 32, {}},
    DTypeFacts{"U32", 32, {}},
    DTypeFacts{"I64", 64, {}},
    DTypeFacts{"U64", 64, {}},
    DTypeFacts{"C64", 64, {}},
    DTypeFacts{"F8_E4M3", 8, {}},
    DTypeFacts{"F8_E5M2", 8, {}},
    DTypeFacts{"F8_E8M0", 8, {}},
    DTypeFacts{"F8_E4M3FNUZ", 8, {}},
    DTypeFacts{"F8_E5M2FNUZ", 8, {}},
    DTypeFacts{"F6_E2M3", 6, {}},
    DTypeFacts{"F6_E3M2", 6, {}},
    DTypeFacts{"F4", 4, {}},
};

const DTypeFacts* find_dtype(std::string_view name) noexcept {
  const auto it =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeFacts& f) { return f.name == name; });
  return it == kDTypes.end() ? nullptr : &*it;
}

// The number of bytes that shape and dtype ask for; throws a message for an impossible one.
std::uint64_t expected_bytes(const SafetensorsEntry& entry, const DTypeFacts& dtype) {
  constexpr std::uint64_t kLimit = std::numeric_limits<std::int64_t>::max();
  std::uint64_t bits = dtype.bits;
  bool empty = false;
  for (const std::int64_t size : entry.shape) {
    if (size == 0) {
      empty = true;
    } else if (bits > kLimit / static_cast<std::uint64_t>(size)) {
      throw HeaderFault(fmt::format("tensor {}: shape {} times {} bits overflows 63 bits",
                                    in_quotes(entry.name), shape_text(entry.shape), dtype.bits));
    } else {
      bits *= static_cast<std::uint64_t>(size);
    }
  }
  if (empty) return 0;
  if (bits % 8 != 0)
    throw HeaderFault(fmt::format("tensor {}: shape {} of {} does not fill whole bytes",
                                  in_quotes(entry.name), shape_text(entry.shape), dtype.name));
  return bits / 8;
}

void check_entry(const SafetensorsEntry& entry) {
  const DTypeFacts* const dtype = find_dtype(entry.dtype);
  if (dtype == nullptr)
    throw HeaderFault(
        fmt::format("tensor {}: unknown dtype {}, expected F64, F32, F16, BF16 or another of the format",
                    in_quotes(entry.name), in_quotes(entry.dtype)));
  if (entry.end < entry.begin)
    throw HeaderFault(fmt::format("tensor {}: data_offsets [{}, {}] are reversed", in_quotes(entry.name),
                                  entry.begin, entry.end));
  const std::uint64_t expected = expected_bytes(entry, *dtype);
  if (entry.end - entry.begin != expected)
    throw HeaderFault(fmt::format(
        "tensor {}: data_offsets [{}, {}] hold {} bytes, but shape {} of {} needs {}", in_quotes(entry.name),
        entry.begin, entry.end, entry.end - entry.begin, shape_text(entry.shape), dtype->name, expected));
}

// Sorts the entries and checks that their ranges cover the data section exactly.
void check_ranges(std::vector<SafetensorsEntry>& entries, std::uint64_t data_bytes) {
  std::stable_sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.end > data_bytes)
      throw HeaderFault(
          fmt::format("tensor {}: data_offsets [{}, {}] reach past the end of the file's {} data bytes",
                      in_quotes(entry.name), entry.begin, entry.end, data_bytes));
    if (entry.begin < covered)
      throw HeaderFault(
          fmt::format("tensor {}: data_offsets [{}, {}] overlap the tensor before, which ends at {}",
                      in_quotes(entry.name), entry.begin, entry.end, covered));
    if (entry.begin > covered)
      throw HeaderFault(fmt::format("tensor {}: data_offsets [{}, {}] leave a hole after byte {}",
                                    in_quotes(entry.name), entry.begin, entry.end, covered));
    covered = entry.end;
  }
  if (covered != data_bytes)
    throw HeaderFault(
        fmt::format("{} bytes follow the last tensor, expected the file to end there", data_bytes - covered));
}

SafetensorsHeader parse(std::span<const std::byte> bytes) {
  constexpr std::uint64_t kLengthBytes = 8, kMaxHeader = 100'000'000;  // the official reader's limit
  if (bytes.empty()) throw HeaderFault("the file is empty, expected a safetensors file");
  if (bytes.size() < kLengthBytes)
    throw HeaderFault(
        fmt::format("the file has {} bytes, too short for the 8-byte header length", bytes.size()));
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length == 0) throw HeaderFault("the header length is 0, expected a JSON header");
  if (length > kMaxHeader)
    throw HeaderFault(fmt::format(
        "the header length is {}, over the limit of {} (is this a safetensors file?)", length, kMaxHeader));
  if (length > bytes.size() - kLengthBytes)
    throw HeaderFault(fmt::format("the header length is {}, but only {} bytes follow it: truncated?", length,
                                  bytes.size() - kLengthBytes));

  const auto* const text = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  SafetensorsHeader header = parse_header_json(std::string_view(text, length));
  header.data_begin = kLengthBytes + length;
  for (const SafetensorsEntry& entry : header.entries) check_entry(entry);
  check_ranges(header.entries, bytes.size() - header.data_begin);
  return header;
}

}  // namespace

SafetensorsHeader parse_safetensors(std::span<const std::byte> bytes, const std::filesystem::path& file) {
  try {
    return parse(bytes);
  } catch (const HeaderFault& fault) {
    throw file_error(file, fault.what());
  }
}

std::optional<DType> engine_type(std::string_view dtype) noexcept {
  const DTypeFacts* const facts = find_dtype(dtype);
  return facts == nullptr ? std::nullopt : facts->type;
}

std::string_view safetensors_dtype(DType type) noexcept {
  for (const DTypeFacts& facts : kDTypes)
    if (facts.type == type) return facts.name;
  return {};  // not reached: the table has every DType
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), file_(path), header_(parse_safetensors(file_.bytes(), path)) {
  index_.reserve(header_.entries.size());
  for (std::size_t i = 0; i < header_.entries.size(); ++i) index_.emplace(header_.entries[i].name, i);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &header_.entries[it->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsEntry& entry) const noexcept {
  return file_.bytes().subspan(header_.data_begin + entry.begin, entry.end - entry.begin);
}

Tensor SafetensorsFile::read(const SafetensorsEntry& entry) const {
  const std::optional<DType> type = engine_type(entry.dtype);
  if (!type)
    throw file_error(
        path_, fmt::format("tensor {}: dtype {} cannot be used, expected F64, F32, F16, BF16, U8 or BOOL",
                           in_quotes(entry.name), entry.dtype));
  Tensor tensor(*type, entry.shape);
  const std::span<const std::byte> source = bytes(entry);
  if (!source.empty()) std::memcpy(tensor.data(), source.data(), source.size());
  return tensor;
}

}  // namespace warpweave::weights
