// The shared memory of the resident kernel whose block owns whole sequences (resident/block_kernel.cuh).
#pragma once

#include "layout/attention_weights.h"

namespace warpweave::layout {

struct BlockPlan {
  AttentionWeights weights;
  int slot;    // tokens set aside for a sequence, a multiple of 16
  int warps;   // a multiple of 4
  int tiles;   // of 16 tokens, of a warp
  int stages;  // of streamed weights, of 2 * heads items

  WARPWEAVE_BOTH int tokens() const { return warps * tiles * 16; }
  WARPWEAVE_BOTH int sequences() const { return tokens() / slot; }
  // Offsets in bytes. First barriers and counters, then one bit per token in halfwords of 16 tokens, then the
  // biases.
  WARPWEAVE_BOTH int valid() const { return 512; }
  WARPWEAVE_BOTH int bias() const { return valid() + round_up(tokens() / 8, 128); }
  WARPWEAVE_BOTH int x() const { return bias() + weights.qkv(); }  // core matrices [tokens, dim]
  // Two of each, for heads in turn.
  WARPWEAVE_BOTH int head_bytes() const { return tokens() * weights.head_width() * 2; }
  WARPWEAVE_BOTH int key(int head) const {
    return x() + tokens() * weights.dim_width() * 2 + head % 2 * 2 * head_bytes();
  }                                                                              // [tokens, head_width]
  WARPWEAVE_BOTH int value(int head) const { return key(head) + head_bytes(); }  // [head_width, tokens]
  // Slots of streamed weights, each for the QKV part of a head or, in a later use, its output part.
  WARPWEAVE_BOTH int stage() const { return value(1) + head_bytes(); }
  WARPWEAVE_BOTH int stage_bytes() const { return weights.head_qkv_bytes(); }
  WARPWEAVE_BOTH int bytes() const { return stage() + stages * stage_bytes(); }
};

}  // namespace warpweave::layout
