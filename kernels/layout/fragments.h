// Where the elements of products lie: the order of channels in fragments, and core matrices in shared memory.
#pragma once

#include "layout/portable.h"

namespace warpweave::layout {

WARPWEAVE_BOTH int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Channels of the grid come to products in an order in which each lane's share of a row is contiguous. A
// fragment takes channels in groups of 8 of which a lane of the quad holds two (columns 2c, 2c + 1); in grid
// order, 32 channels are four groups and lane c holds channels 8c .. 8c + 7 of them: one 16-byte access. The
// tail of a dim that is no multiple of 32 goes by 16 (8-byte accesses), then by 8. Weights are permuted to
// match when they are packed. `group` counts groups of 8, `column` is 0 .. 7 in it; the result is the channel
// in the grid's order.
WARPWEAVE_BOTH int channel_of(int dim, int group, int column) {
  const int full = dim / 32 * 4;  // groups of whole 32-channel chunks
  if (group < full) return group / 4 * 32 + column / 2 * 8 + group % 4 * 2 + column % 2;
  const int base = full * 8;
  if (dim - base >= 16 && group < full + 2) return base + column / 2 * 4 + (group - full) * 2 + column % 2;
  return group * 8 + column;
}

// A matrix of 16-bit elements whose rows run along n and columns along k (the contracted direction), as
// ldmatrix and wgmma take it: core matrices of 8 x 8 elements, 128 contiguous bytes each; two of them (k
// halves) make a step of k = 16 for eight rows. Steps of k are outermost: [k / 16][n / 8][k / 8 % 2][n % 8][k
// % 8].
WARPWEAVE_BOTH int core_index(int rows, int n, int k) {
  return (((k / 16 * (rows / 8) + n / 8) * 2 + k / 8 % 2) * 8 + n % 8) * 8 + k % 8;
}

constexpr int core_bytes = 128;       // one core matrix
constexpr int core_pair_bytes = 256;  // both halves of a step of k for eight rows

}  // namespace warpweave::layout
