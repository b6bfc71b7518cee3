// The orientation that a camera notes in a JPEG file (EXIF 2.32, tag 0x0112).
#pragma once

#include <cstdint>
#include <span>

#include "denoiser/picture.h"

namespace warpweave::denoiser {

// The orientation, 1 to 8, told by an APP1 segment; 0 where it tells none or is damaged.
int exif_orientation(std::span<const std::uint8_t> segment);

// The picture turned and mirrored so that it stands upright. Orientation 1 and unknown ones change nothing.
Picture upright(Picture picture, int orientation);

}  // namespace warpweave::denoiser
