// The shared memory of the resident kernel whose block owns whole sequences (resident/block_kernel.cuh).
#pragma once

#include "layout/attention_weights.h"

namespace warpweave::layout {

struct BlockPlan {
  AttentionWeights weights;
  int slot;    // tokens set aside for a sequence, a multiple of 16
  int warps;   // a multiple of 4
  int tiles;   // of 16 tokens, of a warp
  int stages;  // of streamed weights; `heads` of them: all weights stay

  WARPWEAVE_BOTH int tokens() const { return warps * tiles * 16; }
  WARPWEAVE_BOTH int sequences() const { return tokens() / slot; }
  // Offsets in bytes. First barriers and counters, then one bit per token in halfwords of 16 tokens, then the
  // biases.
  WARPWEAVE_BOTH int valid() const { return 512; }
  WARPWEAVE_BOTH int bias() const { return valid() + round_up(tokens() / 8, 128); }
  WARPWEAVE_BOTH int x() const { return bias() + weights.qkv(); }  // core matrices [tokens, dim]
  WARPWEAVE_BOTH int key() const { return x() + tokens() * weights.dim_width() * 2; }  // [tokens, head_width]
  WARPWEAVE_BOTH int value() const {
    return key() + tokens() * weights.head_width() * 2;
  }  // [head_width, tokens]
  WARPWEAVE_BOTH int qkv() const { return value() + tokens() * weights.head_width() * 2; }
  WARPWEAVE_BOTH int out() const { return qkv() + stages * weights.head_qkv_bytes(); }
  WARPWEAVE_BOTH int bytes() const { return out() + stages * weights.head_out_bytes(); }
};

}  // namespace warpweave::layout
