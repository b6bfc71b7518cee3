// Pictures in memory, and their files: PNG and JPEG in, PNG out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace warpweave::denoiser {

// 8-bit samples, [height, width, channels] row-major. Channels: 1 grey, 2 grey + alpha, 3 RGB, 4 RGBA; alpha
// is not premultiplied.
struct Picture {
  std::int64_t width = 0, height = 0;
  int channels = 0;
  std::vector<std::uint8_t> samples;

  int colours() const noexcept { return channels >= 3 ? 3 : 1; }
  bool has_alpha() const noexcept { return channels == 2 || channels == 4; }
  std::int64_t pixels() const noexcept { return width * height; }
  // All samples zero.
  static Picture blank(std::int64_t width, std::int64_t height, int channels);
};

struct DecodedPicture {
  Picture picture;
  std::string notice;  // what was lost on the way ("16-bit samples are reduced to 8 bits"); often empty
};

// Pictures beyond this are refused before memory is taken.
inline constexpr std::int64_t kMostPixels = std::int64_t{1} << 27;

// Decodes a whole file held in memory: every PNG (palettes are expanded, 16 bits reduced to 8, transparency
// becomes alpha) and grey or colour baseline and progressive JPEG (turned upright by its EXIF orientation).
// Colour profiles and gamma are ignored. Throws Error(input), "NAME: what is wrong", on anything else:
// another format, CMYK, damaged or truncated data, and sizes that the file cannot hold or that exceed
// kMostPixels.
DecodedPicture decode_picture(std::span<const std::uint8_t> file, const std::string& name);

// Reads the file and decodes it.
DecodedPicture read_picture(const std::filesystem::path& path);

// The bytes of a PNG file, 8 bits per sample.
std::vector<std::uint8_t> encode_png(const Picture& picture);

}  // namespace warpweave::denoiser
