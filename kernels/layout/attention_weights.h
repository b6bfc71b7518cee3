// The packed weights of one axial attention layer, as the resident kernels read them.
//
// float32  head_bias  [heads][q | k | v][head_width]      folded biases, zero where padded
// float32  out_bias   [out_width]                         in the order of channel_of
// 16 bit   qkv        [heads] core matrices of [3 head_width, dim_width]   rows q | k | v of the head
// 16 bit   out        [heads] core matrices of [out_width, head_width]     rows in the order of channel_of
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
  WARPWEAVE_BOTH int bytes() const { return out() + heads * head_out_bytes(); }
};

}  // namespace warpweave::layout
