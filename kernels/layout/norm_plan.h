// How composed/norm.cuh divides tokens among the lanes of a block.
#pragma once

#include "layout/portable.h"

namespace warpweave::layout {

struct NormPlan {
  int dim, pitch;     // channels read, and written
  int element_bytes;  // of what is read

  // Elements of one load: 16 bytes where rows of both sides allow it.
  WARPWEAVE_BOTH int vector() const {
    const int widest = 16 / element_bytes;
    return dim % widest == 0 && pitch % widest == 0 ? widest : 1;
  }
  WARPWEAVE_BOTH int vectors() const { return pitch / vector(); }
  WARPWEAVE_BOTH int per_lane(int lanes) const { return (vectors() + lanes - 1) / lanes; }
  // Lanes of a token: as many as a warp has where a token is long, else the number that leaves the fewest
  // idle.
  WARPWEAVE_BOTH int lanes() const {
    int best = 32;
    for (int lanes = 16; lanes > 0 && per_lane(lanes) <= 6; lanes /= 2) {
      if (per_lane(lanes) * lanes < per_lane(best) * best) best = lanes;
    }
    return best;
  }
  WARPWEAVE_BOTH int per_lane() const { return per_lane(lanes()); }
  // Tokens that a lane has under way at a time: up to 24 channels of them, widened to 32 bits.
  WARPWEAVE_BOTH int together() const {
    const int fit = 24 / (per_lane() * vector());
    return fit < 1 ? 1 : fit > 4 ? 4 : fit;
  }
  static constexpr int warps = 4;                                       // of a block
  WARPWEAVE_BOTH int abreast() const { return warps * 32 / lanes(); }   // tokens side by side in a block
  WARPWEAVE_BOTH int tokens() const { return abreast() * together(); }  // of a block at a time
};

}  // namespace warpweave::layout
