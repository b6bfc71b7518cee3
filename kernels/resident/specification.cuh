// The constants that the host compiles into a resident kernel, from macros to one type.
//
//   WW_TYPE bf16 | f16       WW_DIM, WW_HEADS, WW_HEAD_DIM      WW_NORM 0 none, 1 layer, 2 rms     WW_EPS
//   WW_Q_BIAS, WW_K_BIAS, WW_V_BIAS, WW_OUT_BIAS                a folded bias exists
//   WW_RESIDUAL, WW_CAUSAL, WW_MASK, WW_ROPE                    0 | 1
//   WW_SLOT      longest sequence, a multiple of 16             WW_WARPS   warps of a block
//   WW_TILES     tiles of 16 tokens that a warp owns at a time
//   WW_STAGES    of streamed weights (block_kernel.cuh)         WW_WGMMA   0 | 1, warpgroup products
#pragma once

#include "layout/block_plan.h"
#include "ptx/types.cuh"

namespace warpweave {

struct Spec {
  using T = WW_TYPE;
  static constexpr int dim = WW_DIM, heads = WW_HEADS, head_dim = WW_HEAD_DIM;
  static constexpr layout::AttentionWeights weights{dim, heads, head_dim};
  static constexpr int head_width = weights.head_width(), dim_width = weights.dim_width();
  static constexpr int norm = WW_NORM;
  static constexpr float eps = WW_EPS;
  static constexpr bool q_bias = WW_Q_BIAS, k_bias = WW_K_BIAS, v_bias = WW_V_BIAS, out_bias = WW_OUT_BIAS;
  static constexpr bool residual = WW_RESIDUAL, causal = WW_CAUSAL, mask = WW_MASK, rope = WW_ROPE;
  static constexpr int slot = WW_SLOT, warps = WW_WARPS, tiles = WW_TILES;

  static constexpr int stages = WW_STAGES;
  static constexpr bool wgmma = WW_WGMMA;
  static constexpr layout::BlockPlan plan{weights, slot, warps, tiles, stages};

  static constexpr int groups = dim / 8;        // of 8 channels
  static constexpr int steps = dim_width / 16;  // k steps over the channels
  static constexpr int head_steps = head_width / 16;
  static constexpr int out_pairs = dim_width / 16;  // pairs of n = 8 tiles over the output channels
};

}  // namespace warpweave
