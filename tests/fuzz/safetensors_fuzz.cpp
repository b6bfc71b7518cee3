// Any bytes as a safetensors file: parse_safetensors gives entries that lie in the file and cover it, or
// throws Error(input) of one line. The bytes are tried twice: as a whole file, and as a header whose length
// and data are made right, which chance would not get past. (The first two bytes are then the number of data
// bytes.)
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <span>
#include <string>

#include "warpweave/error.h"
#include "weights/safetensors.h"

namespace {

using warpweave::Error;
using warpweave::ErrorCode;
namespace weights = warpweave::weights;

void require(bool holds, const char* promise) {
  if (holds) return;
  std::cerr << "broken promise: " << promise << '\n';
  std::abort();
}

void check(const weights::SafetensorsHeader& header, std::size_t file_size) {
  std::uint64_t end = 0;
  for (const weights::SafetensorsEntry& entry : header.entries) {
    require(entry.begin == end && entry.end >= entry.begin, "ranges touch");
    end = entry.end;
    const auto type = weights::engine_type(entry.dtype);
    if (!type) continue;
    std::uint64_t bytes = warpweave::itemsize(*type);
    for (const std::int64_t size : entry.shape) {
      require(size >= 0, "sizes are not negative");
      bytes *= static_cast<std::uint64_t>(size);
    }
    require(bytes == entry.end - entry.begin, "a range is as long as its shape");
  }
  require(header.data_begin + end == file_size, "the last range ends with the file");
}

void parse(std::string_view bytes) {
  try {
    check(weights::parse_safetensors(std::as_bytes(std::span(bytes)), "fuzz"), bytes.size());
  } catch (const Error& e) {
    const std::string message = e.what();
    require(e.code() == ErrorCode::input, "a bad file is an input error");
    require(message.rfind("fuzz: ", 0) == 0, "an error begins with the file");
    require(message.find('\n') == std::string::npos, "an error is one line");
    require(message.size() < 1000, "an error is short");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  parse(bytes);
  if (size < 2) return 0;
  const std::uint64_t length = size - 2;
  std::string whole(8, '\0');
  std::memcpy(whole.data(), &length, 8);
  whole += bytes.substr(2);
  whole.resize(whole.size() + data[0] + 256u * data[1]);
  parse(whole);
  return 0;
}
