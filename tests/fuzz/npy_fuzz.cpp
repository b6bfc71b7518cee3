// Any bytes as a .npy file: parse_npy_header gives a shape that fills the file, or throws Error(input) of one
// line. The bytes are tried twice: as a whole file, and as a header whose magic, length and data are made
// right, which chance would not get past. (The first byte is then the number of data bytes.)
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>

#include "io/npy.h"
#include "warpweave/error.h"

namespace {

using warpweave::Error;
using warpweave::ErrorCode;

void require(bool holds, const char* promise) {
  if (holds) return;
  std::cerr << "broken promise: " << promise << '\n';
  std::abort();
}

void parse(std::string_view bytes) {
  try {
    const warpweave::NpyHeader header =
        warpweave::parse_npy_header(std::as_bytes(std::span(bytes)), bytes.size(), "fuzz");
    std::uint64_t size = warpweave::itemsize(header.type);
    for (const std::int64_t side : header.shape) {
      require(side >= 0, "sizes are not negative");
      size *= static_cast<std::uint64_t>(side);
    }
    require(header.data_begin + size == bytes.size(), "the elements end with the file");
  } catch (const Error& e) {
    const std::string message = e.what();
    require(e.code() == ErrorCode::input, "a bad file is an input error");
    require(message.rfind("fuzz: ", 0) == 0, "an error begins with the file");
    require(message.find('\n') == std::string::npos, "an error is one line");
    require(message.size() < 2000, "an error is short");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  parse(bytes);
  if (size < 1 || size > 65000) return 0;
  std::string whole = "\x93NUMPY\1";
  whole += '\0';
  whole += static_cast<char>((size - 1) & 255);
  whole += static_cast<char>((size - 1) >> 8);
  whole += bytes.substr(1);
  whole.append(data[0], '\0');
  parse(whole);
  return 0;
}
