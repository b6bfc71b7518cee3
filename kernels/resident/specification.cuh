// What is compiled into a resident kernel, as one type.
#pragma once

#include "layout/block_plan.h"
#include "ptx/types.cuh"

namespace warpweave {

namespace resident {

enum Norm { no_norm = 0, layer_norm = 1, rms_norm = 2 };

// Options, one bit each; the biases are folded ones (layout/attention_weights.h).
enum Flag : int {
  q_bias = 1,
  k_bias = 2,
  v_bias = 4,
  out_bias = 8,
  residual = 16,
  causal = 32,
  mask = 64,
  rope = 128,
  wgmma = 256,  // warpgroup products: compute capability 9.0 and no other
};

}  // namespace resident

// Slot is the longest sequence, a multiple of 16; Tiles the tiles of 16 tokens that a warp owns at a time;
// Stages those of streamed weights (weight_ring.cuh), 0 where the kernel does not stream.
template <class Element, int Dim, int Heads, int HeadDim, int Norm, int Flags, int Slot, int Warps, int Tiles,
          int Stages>
struct Spec {
  using T = Element;
  static constexpr int dim = Dim, heads = Heads, head_dim = HeadDim, norm = Norm;
  static constexpr layout::AttentionWeights weights{dim, heads, head_dim};
  static constexpr int head_width = weights.head_width(), dim_width = weights.dim_width();
  static constexpr bool q_bias = (Flags & resident::q_bias) != 0, k_bias = (Flags & resident::k_bias) != 0,
                        v_bias = (Flags & resident::v_bias) != 0,
                        out_bias = (Flags & resident::out_bias) != 0,
                        residual = (Flags & resident::residual) != 0,
                        causal = (Flags & resident::causal) != 0, mask = (Flags & resident::mask) != 0,
                        rope = (Flags & resident::rope) != 0, wgmma = (Flags & resident::wgmma) != 0;
  static constexpr int slot = Slot, warps = Warps, tiles = Tiles, stages = Stages, threads = 32 * Warps;
  static constexpr layout::BlockPlan plan{weights, slot, warps, tiles, stages};

  // Parts (q, k, v) whose biases are wanted: of warp_end() in layout/attention_weights.h.
  static constexpr int bias_parts = v_bias ? 3 : k_bias ? 2 : 1;
  static constexpr int groups = dim / 8;        // of 8 channels
  static constexpr int steps = dim_width / 16;  // k steps over the channels
  static constexpr int head_steps = head_width / 16;
  static constexpr int out_pairs = dim_width / 16;  // pairs of n = 8 tiles over the output channels
};

}  // namespace warpweave
