// The packed weights of a projection, and the shared memory of the kernel that reads them (long/project.cuh).
//
// A weight [n, k] is cut into slices of `slice` rows, one behind the other, each as it will lie in shared
// memory:
//   float32  scale [slice], bias [slice]   of the output channels, in their order
//   16 bit   core matrices of [slice, k_width]   (layout/fragments.h)
// Every slice starts at a multiple of 128 bytes. n and k are padded with zeros to whole slices and to
// k_width. Inside a slice, 32 rows at a time are permuted so that a lane's accumulators are 8 neighbouring
// output channels, and columns so that 8 neighbouring input channels are a lane's part of an A fragment
// (layout::channel_of of a multiple of 32).
#pragma once

#include "layout/fragments.h"

namespace warpweave::layout {

struct ProjectPlan {
  int k, n;    // channels of a token before and after, multiples of 8
  int slice;   // output channels of a block, a multiple of chunk
  int chunk;   // output channels of one product, a multiple of 32
  int groups;  // warpgroups of a block

  WARPWEAVE_BOTH int k_width() const { return round_up(k, 32); }
  WARPWEAVE_BOTH int slices() const { return (n + slice - 1) / slice; }
  WARPWEAVE_BOTH int scale() const { return 0; }
  WARPWEAVE_BOTH int bias() const { return slice * 4; }
  WARPWEAVE_BOTH int weight() const { return slice * 8; }
  WARPWEAVE_BOTH int slice_bytes() const { return weight() + slice * k_width() * 2; }
  WARPWEAVE_BOTH int packed_bytes() const { return slices() * slice_bytes(); }
  // A barrier, then the block's slice.
  WARPWEAVE_BOTH int first_slice() const { return 128; }
  WARPWEAVE_BOTH int shared_bytes() const { return first_slice() + slice_bytes(); }
  WARPWEAVE_BOTH int threads() const { return groups * 128; }
};

// Where an input channel, or an output channel, stands among the columns or rows of a packed slice.
WARPWEAVE_BOTH int place_of(int channel) {
  const int c = channel % 32;
  return channel / 32 * 32 + c % 8 / 2 * 8 + c / 8 * 2 + c % 2;
}

}  // namespace warpweave::layout
