#include "denoiser/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "denoiser/picture_codecs.h"
#include "io/file.h"
#include "warpweave/error.h"

namespace warpweave::denoiser {
namespace {

constexpr std::array<std::uint8_t, 8> kPngSignature = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
constexpr std::array<std::uint8_t, 3> kJpegSignature = {0xff, 0xd8, 0xff};
constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 30;

template <std::size_t N>
bool starts_with(std::span<const std::uint8_t> file, const std::array<std::uint8_t, N>& signature) {
  return file.size() >= N && std::equal(signature.begin(), signature.end(), file.begin());
}

}  // namespace

Picture Picture::blank(std::int64_t width, std::int64_t height, int channels) {
  return {width, height, channels,
          std::vector<std::uint8_t>(static_cast<std::size_t>(width * height * channels))};
}

void check_claimed_size(std::int64_t width, std::int64_t height, std::size_t file_bytes,
                        std::int64_t pixels_per_byte, const std::string& name) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::input, fmt::format("{}: claims {} x {} pixels, {}", name, width, height, what));
  };
  if (width < 1 || height < 1) fail("which is empty");
  if (width > kMostPixels / height) fail(fmt::format("more than the {} that are allowed", kMostPixels));
  if (width * height / pixels_per_byte > static_cast<std::int64_t>(file_bytes)) {
    fail(fmt::format("more than its {} bytes can hold: the file is truncated or damaged", file_bytes));
  }
}

DecodedPicture decode_picture(std::span<const std::uint8_t> file, const std::string& name) {
  if (starts_with(file, kPngSignature)) return decode_png(file, name);
  if (starts_with(file, kJpegSignature)) return decode_jpeg(file, name);
  throw Error(ErrorCode::input, file.empty()
                                    ? fmt::format("{}: is empty; a PNG or JPEG picture is needed", name)
                                    : fmt::format("{}: is neither a PNG nor a JPEG picture", name));
}

DecodedPicture read_picture(const std::filesystem::path& path) {
  const InputFile file(path);
  if (file.size() > kMostFileBytes)
    throw file_error(path, "is larger than 1 GiB, no picture that can be read here");
  std::vector<std::uint8_t> bytes(file.size());
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return decode_picture(bytes, path.string());
}

}  // namespace warpweave::denoiser
