// The packed weights of a wide projection, and the shared memory of the kernel that reads them
// (long/project_wide.cuh). A weight [n, k] is cut into tiles of `columns` output channels and steps of 64
// input channels, each as it will lie in shared memory:
//   16 bit   [tile][step][columns][64]   rows of 128 bytes, their 16-byte pieces swizzled as the copy engine
//   does float32  scale, bias, sums           [tiles * columns] each, in the order of output channels
// n and k are padded with zeros. 32 rows at a time are permuted so that a lane's accumulators are 8
// neighbouring output channels (layout::place_of).
#pragma once

#include "long/project_plan.h"

namespace warpweave::layout {

struct WidePlan {
  int k, n;     // channels of a token before and after, multiples of 8
  int columns;  // output channels of a tile: 64, 96, 128, 192 or 256
  int stages;   // of shared memory
  bool ahead;   // two accumulators: a tile's results leave during the next one's products

  static constexpr int kTokens = 128;  // of a tile: 64 for each of two warpgroups
  static constexpr int kStep = 64;     // input channels of a stage
  WARPWEAVE_BOTH int steps() const { return (k + kStep - 1) / kStep; }
  WARPWEAVE_BOTH int tiles() const { return (n + columns - 1) / columns; }
  WARPWEAVE_BOTH int n_width() const { return tiles() * columns; }
  WARPWEAVE_BOTH int pieces() const { return columns / 32; }

  // Packed weights. Places are rows of a tile after the permutation.
  WARPWEAVE_BOTH int step_bytes() const { return columns * kStep * 2; }
  WARPWEAVE_BOTH int tile_bytes() const { return steps() * step_bytes(); }
  WARPWEAVE_BOTH int byte_of(int tile, int place, int channel) const {
    const int in_step = channel % kStep;
    return tile * tile_bytes() + channel / kStep * step_bytes() + place * 128 +
           ((in_step / 8) ^ (place % 8)) * 16 + in_step % 8 * 2;
  }
  WARPWEAVE_BOTH int scale() const { return tiles() * tile_bytes(); }
  WARPWEAVE_BOTH int bias() const { return scale() + n_width() * 4; }
  WARPWEAVE_BOTH int sums() const { return bias() + n_width() * 4; }
  WARPWEAVE_BOTH int packed_bytes() const { return sums() + n_width() * 4; }

  // Shared memory: stages of tokens and weights, then two barriers each.
  WARPWEAVE_BOTH int stage_bytes() const { return kTokens * kStep * 2 + step_bytes(); }
  WARPWEAVE_BOTH int barriers() const { return stages * stage_bytes(); }
  WARPWEAVE_BOTH int shared_bytes() const { return barriers() + 2 * 8 * stages; }
  static constexpr int kThreads = 3 * 128;  // the third warpgroup loads
};

}  // namespace warpweave::layout
