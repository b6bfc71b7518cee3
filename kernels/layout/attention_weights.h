// The packed weights of one axial attention layer, as the resident kernels read them.
//
// float32  head_bias  [heads][q | k | v][head_width]      folded biases, zero where padded
// float32  out_bias   [out_width]                         in the order of channel_of
// 16 bit   qkv        [heads] core matrices of [3 head_width, dim_width]   rows q | k | v of the head
// 16 bit   out        [heads] core matrices of [out_width, head_width]     rows in the order of channel_of
// float32  tile_bias  the biases again, of the output, then [q | k | v][heads]: two neighbouring channels b
// b' as
//                     b b' b b', what a lane starts a tile of a product from (resident/warp_kernels.cuh)
// Every part starts at a multiple of 128 bytes. head_width, dim_width and out_width are head_dim and dim
// rounded up to 16 with zeros, so that a step of k = 16 and a pair of n = 8 tiles are always whole.
#pragma once

#include "layout/fragments.h"

namespace warpweave::layout {

struct AttentionWeights {
  int dim, heads, head_dim;

  WARPWEAVE_BOTH int head_width() const { return round_up(head_dim, 16); }
  WARPWEAVE_BOTH int dim_width() const { return round_up(dim, 16); }
  WARPWEAVE_BOTH int head_bias_bytes() const { return round_up(heads * 3 * head_width() * 4, 128); }
  WARPWEAVE_BOTH int out_bias_bytes() const { return round_up(dim_width() * 4, 128); }
  WARPWEAVE_BOTH int head_qkv_bytes() const { return 3 * head_width() * dim_width() * 2; }
  WARPWEAVE_BOTH int head_out_bytes() const { return dim_width() * head_width() * 2; }

  WARPWEAVE_BOTH int out_bias() const { return head_bias_bytes(); }
  WARPWEAVE_BOTH int qkv() const { return out_bias() + out_bias_bytes(); }
  WARPWEAVE_BOTH int out() const { return qkv() + heads * head_qkv_bytes(); }
  WARPWEAVE_BOTH int tile_bias() const { return out() + heads * head_out_bytes(); }
  // Of the pair that channel `c` of the output, or of a part (0 .. 2) of a head, is in.
  WARPWEAVE_BOTH int out_tile_bias(int c) const { return tile_bias() + c / 2 * 16; }
  WARPWEAVE_BOTH int head_tile_bias(int head, int part, int c) const {
    return warp_end(part) + (head * head_width() + c / 2 * 2) * 8;
  }
  WARPWEAVE_BOTH int part_tile_bias_bytes() const { return round_up(heads * head_width() * 8, 128); }
  // Kernels whose warps own sequences take all from qkv() on, with the biases of the first `parts` parts.
  WARPWEAVE_BOTH int warp_end(int parts) const {
    return tile_bias() + round_up(dim_width() * 8, 128) + parts * part_tile_bias_bytes();
  }
  WARPWEAVE_BOTH int warp_bytes(int parts) const { return warp_end(parts) - qkv(); }
  WARPWEAVE_BOTH int bytes() const { return warp_end(3); }
};

}  // namespace warpweave::layout
