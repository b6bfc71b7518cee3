#include "denoiser/exif.h"

#include <algorithm>
#include <array>

namespace warpweave::denoiser {
namespace {

// Reads the TIFF structure inside the segment, in either byte order, never past its end.
class Tiff {
 public:
  explicit Tiff(std::span<const std::uint8_t> bytes) : bytes_(bytes) {
    big_endian_ = bytes.size() >= 2 && bytes[0] == 'M' && bytes[1] == 'M';
  }
  bool holds(std::size_t offset, std::size_t count) const {
    return offset <= bytes_.size() && count <= bytes_.size() - offset;
  }
  std::uint32_t read(std::size_t offset, std::size_t count) const {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < count; ++i) {
      value = value << 8 | bytes_[offset + (big_endian_ ? i : count - 1 - i)];
    }
    return value;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  bool big_endian_ = false;
};

constexpr std::uint32_t kOrientationTag = 0x0112, kShort = 3;
constexpr std::size_t kEntryBytes = 12;

}  // namespace

int exif_orientation(std::span<const std::uint8_t> segment) {
  constexpr std::array<std::uint8_t, 6> kPrefix = {'E', 'x', 'i', 'f', 0, 0};
  if (segment.size() < kPrefix.size() || !std::equal(kPrefix.begin(), kPrefix.end(), segment.begin()))
    return 0;
  const Tiff tiff(segment.subspan(kPrefix.size()));
  if (!tiff.holds(0, 8) || tiff.read(2, 2) != 42) return 0;
  const std::size_t directory = tiff.read(4, 4);
  if (!tiff.holds(directory, 2)) return 0;
  const std::size_t entries = tiff.read(directory, 2);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + i * kEntryBytes;
    if (!tiff.holds(entry, kEntryBytes)) return 0;
    if (tiff.read(entry, 2) != kOrientationTag || tiff.read(entry + 2, 2) != kShort) continue;
    const auto value = static_cast<int>(tiff.read(entry + 8, 2));
    return value >= 1 && value <= 8 ? value : 0;
  }
  return 0;
}

Picture upright(Picture picture, int orientation) {
  if (orientation < 2 || orientation > 8) return picture;
  const bool transposed = orientation >= 5;
  // Where the upright picture is read from: mirrored along x or y of the stored one, after the transposition.
  const bool mirror_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool mirror_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const std::int64_t w = picture.width, h = picture.height;
  Picture out = Picture::blank(transposed ? h : w, transposed ? w : h, picture.channels);
  for (std::int64_t y = 0; y < out.height; ++y) {
    for (std::int64_t x = 0; x < out.width; ++x) {
      const std::int64_t sx = transposed ? y : x, sy = transposed ? x : y;
      const std::int64_t from_x = mirror_x ? w - 1 - sx : sx, from_y = mirror_y ? h - 1 - sy : sy;
      std::copy_n(picture.samples.data() + (from_y * w + from_x) * picture.channels, picture.channels,
                  out.samples.data() + (y * out.width + x) * picture.channels);
    }
  }
  return out;
}

}  // namespace warpweave::denoiser
