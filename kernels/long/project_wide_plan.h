// The packed weights of a wide projection, and the shared memory of the kernel that reads them
// (long/project_wide.cuh). A weight [n, k] is cut into tiles of `columns` output channels and steps of 64
// input channels, each as it will lie in shared memory:
//   16 bit   [tile][step][columns][64]     rows of 128 bytes, 16-byte pieces swizzled as the copy engine does
//   float32  [tile][scale, bias, sum][columns]   of the output channels, in their order
// n and k are padded with zeros. 32 rows at a time are permuted so that a lane's accumulators are 8
// neighbouring output channels (layout::place_of).
#pragma once

#include "long/project_plan.h"

namespace warpweave::layout {

struct WidePlan {
  int k, n;     // channels of a token before and after, multiples of 8
  int columns;  // output channels of a tile: 64, 96, 128 or 192
  int stages;   // of shared memory

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
  WARPWEAVE_BOTH int scale() const { return 0; }  // among the constants of a tile
  WARPWEAVE_BOTH int bias() const { return columns * 4; }
  WARPWEAVE_BOTH int sum() const { return columns * 8; }
  WARPWEAVE_BOTH int constants_bytes() const { return columns * 12; }
  WARPWEAVE_BOTH int constants_of(int tile) const {
    return tiles() * tile_bytes() + tile * constants_bytes();
  }
  WARPWEAVE_BOTH int packed_bytes() const { return constants_of(tiles()); }

  // Shared memory: stages of tokens and weights; then, for each of the tiles that are under way between the
  // first load and the last result, its constants and (mean / deviation, 1 / deviation) of its tokens; then
  // barriers, two a stage and one for each of those tiles.
  WARPWEAVE_BOTH int stage_bytes() const { return kTokens * kStep * 2 + step_bytes(); }
  WARPWEAVE_BOTH int constants() const { return stages * stage_bytes(); }
  WARPWEAVE_BOTH int tiles_under_way() const { return (stages + steps() - 1) / steps() + 2; }
  WARPWEAVE_BOTH int moments() const { return constants() + tiles_under_way() * constants_bytes(); }
  WARPWEAVE_BOTH int moments_bytes() const { return kTokens * 8; }
  WARPWEAVE_BOTH int barriers() const { return moments() + tiles_under_way() * moments_bytes(); }
  WARPWEAVE_BOTH int shared_bytes() const { return barriers() + 8 * (2 * stages + tiles_under_way()); }
  static constexpr int kThreads = 3 * 128;  // the third warpgroup loads and looks at tokens
};

}  // namespace warpweave::layout
