// Any bytes as a picture: decode_picture gives a picture as its header promises or throws Error(input) of one
// line. PNG files are tried a second time with their checksums made right, which chance would not get past.
#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "denoiser/picture.h"
#include "warpweave/error.h"

namespace {

using warpweave::Error;
using warpweave::ErrorCode;
namespace denoiser = warpweave::denoiser;

void require(bool holds, const char* promise) {
  if (holds) return;
  std::cerr << "broken promise: " << promise << '\n';
  std::abort();
}

void decode(std::span<const std::uint8_t> file) {
  try {
    const denoiser::Picture p = denoiser::decode_picture(file, "fuzz").picture;
    require(p.width >= 1 && p.height >= 1 && p.pixels() <= denoiser::kMostPixels,
            "a picture has a sane size");
    require(p.channels >= 1 && p.channels <= 4, "a picture has 1 to 4 channels");
    require(p.samples.size() == static_cast<std::size_t>(p.pixels() * p.channels), "all samples are there");
  } catch (const Error& e) {
    const std::string message = e.what();
    require(e.code() == ErrorCode::input, "a bad picture is an input error");
    require(message.rfind("fuzz: ", 0) == 0, "an error begins with the file");
    require(message.find('\n') == std::string::npos, "an error is one line");
  }
}

std::uint32_t big_endian(const std::uint8_t* p) {
  return std::uint32_t{p[0]} << 24 | std::uint32_t{p[1]} << 16 | std::uint32_t{p[2]} << 8 | p[3];
}

// Chunks are length, type, data, CRC-32 of type and data; the first begins at byte 8.
void mend_checksums(std::vector<std::uint8_t>& file) {
  constexpr std::size_t kFrame = 12;
  for (std::size_t at = 8; at + kFrame <= file.size();) {
    const std::size_t length = big_endian(&file[at]);
    if (length > file.size() - at - kFrame) return;
    const uLong sum = crc32(0, &file[at + 4], static_cast<uInt>(length + 4));
    for (int i = 0; i < 4; ++i) file[at + 8 + length + i] = static_cast<std::uint8_t>(sum >> (24 - 8 * i));
    at += kFrame + length;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  decode({data, size});
  if (size > 8 && data[0] == 0x89) {
    std::vector<std::uint8_t> mended(data, data + size);
    mend_checksums(mended);
    decode(mended);
  }
  return 0;
}
