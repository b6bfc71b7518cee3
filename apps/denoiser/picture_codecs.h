// The two readers behind decode_picture. Internal to this folder.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "denoiser/picture.h"

namespace warpweave::denoiser {

DecodedPicture decode_png(std::span<const std::uint8_t> file, const std::string& name);
DecodedPicture decode_jpeg(std::span<const std::uint8_t> file, const std::string& name);

// Throws Error(input) unless the claimed size is legal and `file_bytes` could hold it at the format's
// densest, `pixels_per_byte`: a few bytes that claim gigabytes are refused before memory is taken.
void check_claimed_size(std::int64_t width, std::int64_t height, std::size_t file_bytes,
                        std::int64_t pixels_per_byte, const std::string& name);

}  // namespace warpweave::denoiser
