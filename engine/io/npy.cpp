#include "io/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>

#include "io/atomic_file.h"
#include "io/file.h"
#include "io/npy_literal.h"
#include "io/text.h"
#include "numeric/shape_text.h"

namespace warpweave {
namespace {

static_assert(std::endian::native == std::endian::little,
              "elements are stored little-endian and used as they are");

constexpr std::string_view kMagic = "\x93NUMPY";

struct NpyType {
  std::string_view descr;
  DType type;
};
constexpr std::array<NpyType, 5> kTypes = {{{"<f4", DType::f32},
                                            {"<f2", DType::f16},
                                            {"<f8", DType::f64},
                                            {"|u1", DType::u8},
                                            {"|b1", DType::boolean}}};

DType parse_descr(const std::string& descr) {
  for (const NpyType& t : kTypes)
    if (t.descr == descr) return t.type;
  constexpr std::string_view kExpected = "expected '<f4', '<f2', '<f8', '|u1' or '|b1'";
  if (descr.starts_with('>'))
    throw NpyFault(fmt::format("dtype {} is big-endian, {}", in_quotes(descr), kExpected));
  if (descr.ends_with('O'))
    throw NpyFault(fmt::format("dtype {} is Python objects, {}", in_quotes(descr), kExpected));
  throw NpyFault(fmt::format("dtype {} cannot be used, {}", in_quotes(descr), kExpected));
}

// Bytes of the elements; a shape whose product overflows cannot be a file's.
std::uint64_t data_bytes(const NpyLiteral& literal, DType type) {
  constexpr std::uint64_t kLimit = std::numeric_limits<std::int64_t>::max();
  std::uint64_t bytes = itemsize(type);
  bool empty = false;
  for (const std::int64_t size : literal.shape) {
    if (size == 0) {
      empty = true;
    } else if (bytes > kLimit / static_cast<std::uint64_t>(size)) {
      throw NpyFault(fmt::format("shape {} times {} bytes overflows 63 bits", shape_text(literal.shape),
                                 itemsize(type)));
    } else {
      bytes *= static_cast<std::uint64_t>(size);
    }
  }
  return empty ? 0 : bytes;
}

NpyHeader parse(std::span<const std::byte> start, std::uint64_t file_size) {
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  if (text.empty()) throw NpyFault("the file is empty, expected a .npy file");
  if (text.starts_with("PK"))
    throw NpyFault("is a zip archive (.npz?), expected one array written by numpy.save");
  if (!text.starts_with(kMagic)) {
    if (kMagic.starts_with(text)) throw NpyFault("truncated inside the magic string");
    throw NpyFault("does not start as a .npy file (\\x93NUMPY)");
  }
  if (text.size() < 8) throw NpyFault("truncated before the format version");
  const int major = static_cast<unsigned char>(text[6]), minor = static_cast<unsigned char>(text[7]);
  if (major < 1 || major > 3 || minor != 0)
    throw NpyFault(fmt::format("format version {}.{} is unknown, expected 1.0, 2.0 or 3.0", major, minor));
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  if (text.size() < 8 + length_bytes) throw NpyFault("truncated inside the header length");
  std::uint32_t length = 0;
  std::memcpy(&length, text.data() + 8, length_bytes);
  const std::size_t begin = 8 + length_bytes;
  if (length > file_size - begin)
    throw NpyFault(fmt::format("the header length is {}, but only {} bytes follow it: truncated?", length,
                               file_size - begin));
  if (length > kNpyHeaderLimit - 12)
    throw NpyFault(
        fmt::format("the header length is {}, over the limit of {}", length, kNpyHeaderLimit - 12));

  const NpyLiteral literal = parse_npy_literal(text.substr(begin, length));
  NpyHeader header{parse_descr(literal.descr), literal.shape, begin + length};
  // In C and Fortran order alike where no two sizes are above 1, but NumPy itself writes False then.
  if (literal.fortran_order)
    throw NpyFault("the array is in Fortran order, expected C order (save numpy.ascontiguousarray(x))");
  const std::uint64_t needed = data_bytes(literal, header.type), present = file_size - header.data_begin;
  if (needed != present)
    throw NpyFault(fmt::format("shape {} of {} needs {} bytes, but {} follow the header{}",
                               shape_text(header.shape), to_string(header.type), needed, present,
                               present < needed ? ": truncated?" : ": trailing bytes"));
  return header;
}

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> start, std::uint64_t file_size,
                           const std::filesystem::path& file) {
  try {
    return parse(start, file_size);
  } catch (const NpyFault& fault) {
    throw file_error(file, fault.what());
  }
}

Tensor load_npy(const std::filesystem::path& path) {
  const InputFile file(path);
  std::vector<std::byte> start(
      static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), kNpyHeaderLimit)));
  file.read(0, start);
  NpyHeader header = parse_npy_header(start, file.size(), path);
  Tensor tensor(header.type, std::move(header.shape));
  file.read(header.data_begin, {static_cast<std::byte*>(tensor.data()), tensor.bytes()});
  return tensor;
}

void save_npy(const std::filesystem::path& path, const Tensor& tensor) {
  const auto type =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const NpyType& t) { return t.type == tensor.dtype(); });
  if (type == kTypes.end())
    throw file_error(path, fmt::format("NumPy has no type {}; write .safetensors, or convert to float32",
                                       to_string(tensor.dtype())));
  if (tensor.data() == nullptr) throw file_error(path, "a tensor without a shape cannot be written");
  const std::string list = shape_text(tensor.shape());  // "[2, 3]"
  const std::string shape = fmt::format("({}{})", std::string_view(list).substr(1, list.size() - 2),
                                        tensor.shape().size() == 1 ? "," : "");
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", type->descr, shape);
  constexpr std::size_t kAlignment = 64, kPrefix = 10;  // the elements start aligned, as NumPy writes them
  header.append(kAlignment - 1 - (kPrefix + header.size()) % kAlignment, ' ');
  header += '\n';
  if (header.size() > std::numeric_limits<std::uint16_t>::max())
    throw file_error(path,
                     fmt::format("a shape of {} sizes does not fit a .npy header", tensor.shape().size()));
  const auto length = static_cast<std::uint16_t>(header.size());

  AtomicFile file(path);
  file.write(kMagic.data(), kMagic.size());
  file.write("\x01\x00", 2);
  file.write(&length, sizeof length);
  file.write(header.data(), header.size());
  file.write(tensor.data(), tensor.bytes());
  file.commit();
}

}  // namespace warpweave
