// PNG and JPEG files in memory, of every kind and broken in every way.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "denoiser/picture.h"

namespace warpweave::test {

using Bytes = std::vector<std::uint8_t>;

void append(Bytes& to, const Bytes& more);
Bytes big_endian(std::uint32_t value);

// One chunk with its length and checksum.
Bytes png_chunk(const std::string& type, const Bytes& data);
Bytes png_signature();
Bytes png_header(std::uint32_t width, std::uint32_t height, int bits, int colour_type, int interlace = 0);
// `raw` are the rows, each after its filter byte; deflated into one IDAT.
Bytes png_data(const Bytes& raw);
// Signature, header, `between`, data, IEND.
Bytes png(const Bytes& header, const Bytes& between, const Bytes& raw);

struct JpegKind {
  bool progressive = false;
  bool grey = false;
  bool cmyk = false;
  int orientation = 0;  // an EXIF segment says so, unless 0
};
// Quality 95, without chroma subsampling. The samples of CMYK are those of the RGB picture and full black.
Bytes jpeg(const denoiser::Picture& picture, const JpegKind& kind);

// Smooth colours, different in every corner.
denoiser::Picture gradient(std::int64_t width, std::int64_t height, int channels);

}  // namespace warpweave::test
