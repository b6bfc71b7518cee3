#include "warpweave/types.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>
#include <system_error>

#include "warpweave/error.h"

namespace warpweave {
namespace {

struct DTypeFacts {
  DType type;
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array<DTypeFacts, 6> kDTypes = {{{DType::f64, "float64", 8},
                                                {DType::f32, "float32", 4},
                                                {DType::f16, "float16", 2},
                                                {DType::bf16, "bfloat16", 2},
                                                {DType::u8, "uint8", 1},
                                                {DType::boolean, "bool", 1}}};

struct PrecisionFacts {
  Precision precision;
  std::string_view name;
  DType storage;
};
constexpr std::array<PrecisionFacts, 5> kPrecisions = {{{Precision::fp32, "fp32", DType::f32},
                                                        {Precision::tf32, "tf32", DType::f32},
                                                        {Precision::bf16, "bf16", DType::bf16},
                                                        {Precision::fp16, "fp16", DType::f16},
                                                        {Precision::fp64, "fp64", DType::f64}}};

// Both tables are indexed by the enumerators' values.
const DTypeFacts& facts(DType type) noexcept { return kDTypes[static_cast<std::size_t>(type)]; }
const PrecisionFacts& facts(Precision p) noexcept { return kPrecisions[static_cast<std::size_t>(p)]; }

template <class Table>
std::string names(const Table& table) {
  std::string list;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (i > 0) list += i + 1 == table.size() ? " or " : ", ";
    list += table[i].name;
  }
  return list;
}

}  // namespace

std::size_t itemsize(DType type) noexcept { return facts(type).bytes; }
std::string_view to_string(DType type) noexcept { return facts(type).name; }

DType parse_dtype(std::string_view name) {
  for (const DTypeFacts& f : kDTypes)
    if (f.name == name) return f.type;
  throw Error(ErrorCode::input, fmt::format("unknown element type '{}', expected {}", name, names(kDTypes)));
}

std::string_view to_string(Precision precision) noexcept { return facts(precision).name; }
DType storage_type(Precision precision) noexcept { return facts(precision).storage; }

Precision parse_precision(std::string_view name) {
  for (const PrecisionFacts& f : kPrecisions)
    if (f.name == name) return f.precision;
  throw Error(ErrorCode::input, fmt::format("unknown precision '{}', expected {}", name, names(kPrecisions)));
}

std::string to_string(Device device) {
  switch (device.kind) {
    case Device::Kind::cpu:
      return "cpu";
    case Device::Kind::cuda:
      return fmt::format("cuda:{}", device.index);
    case Device::Kind::automatic:
      break;
  }
  return "auto";
}

Device parse_device(std::string_view name) {
  if (name == "auto") return Device::automatic();
  if (name == "cpu") return Device::cpu();
  if (name == "cuda") return Device::cuda();
  constexpr std::string_view kPrefix = "cuda:";
  if (name.starts_with(kPrefix)) {
    const char* const end = name.data() + name.size();
    int index = 0;
    const auto [stop, status] = std::from_chars(name.data() + kPrefix.size(), end, index);
    if (status == std::errc() && stop == end && index >= 0) return Device::cuda(index);
  }
  throw Error(ErrorCode::input, fmt::format("unknown device '{}', expected auto, cpu, cuda or cuda:N", name));
}

std::string to_string(const GridShape& shape) {
  return fmt::format("[{}, {}, {}, {}]", shape.batch, shape.rows, shape.columns, shape.channels);
}

void check(const GridShape& shape, std::string_view what) {
  // With room for a sum of several grids in bytes.
  constexpr std::int64_t kLimit = std::numeric_limits<std::int64_t>::max() / 64;
  std::int64_t elements = 1;
  for (const std::int64_t size : {shape.batch, shape.rows, shape.columns, shape.channels}) {
    if (size < 1)
      throw Error(ErrorCode::input,
                  fmt::format("{} {} [batch, rows, columns, channels]: every size must be at least 1", what,
                              to_string(shape)));
    if (elements > kLimit / size)
      throw Error(ErrorCode::input,
                  fmt::format("{} {}: too many elements to address with 64 bits", what, to_string(shape)));
    elements *= size;
  }
}

}  // namespace warpweave
