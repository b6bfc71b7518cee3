#include "cli/picture_samples.h"

#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
// jpeglib.h needs size_t and FILE declared before it.
#include <jpeglib.h>

namespace warpweave::test {

void append(Bytes& to, const Bytes& more) {
  for (const std::uint8_t byte : more) to.push_back(byte);
}

Bytes big_endian(std::uint32_t v) {
  return {static_cast<std::uint8_t>(v >> 24), static_cast<std::uint8_t>(v >> 16),
          static_cast<std::uint8_t>(v >> 8), static_cast<std::uint8_t>(v)};
}

Bytes png_chunk(const std::string& type, const Bytes& data) {
  Bytes checked(type.begin(), type.end());
  append(checked, data);
  Bytes chunk = big_endian(static_cast<std::uint32_t>(data.size()));
  append(chunk, checked);
  append(chunk,
         big_endian(static_cast<std::uint32_t>(crc32(0, checked.data(), static_cast<uInt>(checked.size())))));
  return chunk;
}

Bytes png_signature() { return {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}; }

Bytes png_header(std::uint32_t width, std::uint32_t height, int bits, int colour_type, int interlace) {
  Bytes data = big_endian(width);
  append(data, big_endian(height));
  append(data, {static_cast<std::uint8_t>(bits), static_cast<std::uint8_t>(colour_type), 0, 0,
                static_cast<std::uint8_t>(interlace)});
  return png_chunk("IHDR", data);
}

Bytes png_data(const Bytes& raw) {
  uLongf size = compressBound(static_cast<uLong>(raw.size()));
  Bytes packed(size);
  if (compress(packed.data(), &size, raw.data(), static_cast<uLong>(raw.size())) != Z_OK)
    throw std::runtime_error("zlib");
  packed.resize(size);
  return png_chunk("IDAT", packed);
}

Bytes png(const Bytes& header, const Bytes& between, const Bytes& raw) {
  Bytes file = png_signature();
  append(file, header);
  append(file, between);
  append(file, png_data(raw));
  append(file, png_chunk("IEND", {}));
  return file;
}

namespace {

Bytes exif_segment(int orientation) {
  Bytes s = {'E', 'x', 'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1};
  append(s, {0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, static_cast<std::uint8_t>(orientation), 0, 0, 0, 0, 0, 0});
  return s;
}

}  // namespace

Bytes jpeg(const denoiser::Picture& picture, const JpegKind& kind) {
  jpeg_compress_struct encoder{};
  jpeg_error_mgr errors{};
  encoder.err = jpeg_std_error(&errors);
  jpeg_create_compress(&encoder);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&encoder, &memory, &size);
  encoder.image_width = static_cast<JDIMENSION>(picture.width);
  encoder.image_height = static_cast<JDIMENSION>(picture.height);
  encoder.input_components = kind.grey ? 1 : kind.cmyk ? 4 : 3;
  encoder.in_color_space = kind.grey ? JCS_GRAYSCALE : kind.cmyk ? JCS_CMYK : JCS_RGB;
  jpeg_set_defaults(&encoder);
  jpeg_set_quality(&encoder, 95, TRUE);
  for (int c = 0; c < encoder.num_components; ++c)
    encoder.comp_info[c].h_samp_factor = encoder.comp_info[c].v_samp_factor = 1;
  if (kind.progressive) jpeg_simple_progression(&encoder);
  jpeg_start_compress(&encoder, TRUE);
  if (kind.orientation != 0) {
    const Bytes exif = exif_segment(kind.orientation);
    jpeg_write_marker(&encoder, JPEG_APP0 + 1, exif.data(), static_cast<unsigned>(exif.size()));
  }
  Bytes row(static_cast<std::size_t>(picture.width * encoder.input_components), 255);
  for (std::int64_t y = 0; y < picture.height; ++y) {
    for (std::int64_t x = 0; x < picture.width; ++x)
      for (int c = 0; c < picture.channels && c < encoder.input_components; ++c)
        row[static_cast<std::size_t>(x * encoder.input_components + c)] =
            picture.samples[static_cast<std::size_t>((y * picture.width + x) * picture.channels + c)];
    JSAMPROW pointer = row.data();
    jpeg_write_scanlines(&encoder, &pointer, 1);
  }
  jpeg_finish_compress(&encoder);
  Bytes file(memory, memory + size);
  jpeg_destroy_compress(&encoder);
  std::free(memory);
  return file;
}

denoiser::Picture gradient(std::int64_t width, std::int64_t height, int channels) {
  denoiser::Picture p = denoiser::Picture::blank(width, height, channels);
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c) {
        const std::int64_t across = width > 1 ? 160 * x / (width - 1) : 0,
                           down = height > 1 ? 60 * y / (height - 1) : 0;
        p.samples[static_cast<std::size_t>((y * width + x) * channels + c)] =
            static_cast<std::uint8_t>(20 + (c % 2 == 0 ? across : 160 - across) + down);
      }
  return p;
}

}  // namespace warpweave::test
