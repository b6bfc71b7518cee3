// A layer as the kernels for one warp a sequence have it in shared memory (kernels/split/warp_sequence.cuh).
// Host code alone; needs no CUDA.
//
// All that need not be done for every token is done here:
// - Sums over a normalised token are q, k and v as they are multiplied: each row of Wqkv has a scale of its
//   own, which is divided out of the row of k or the column of Wout that it meets.
// - q k are logarithms to base 2: the scores' scale and log2(e) are in q and k.
// - A mean that is not exact does no harm: the rows that LayerNorm's tokens meet have sum zero.
// - Without RoPE the bias of k changes no softmax; without a mask the bias of v is one of the result.
// In tf32, where weights have one part, these scales are chosen for the least error of rounding: of so many
// random roundings of a row the best has 2/3 of the usual error.
#pragma once

#include <cstddef>
#include <vector>

#include "graph/layers/axial_attention.h"
#include "weights/load.h"

namespace warpweave::cuda::split {

struct WarpPacked {
  // Of each weight core matrices [part][k / 16][row / 8][k / 8 % 2][row % 8][k % 8], then float32: what sums
  // of q, k and v begin with, [row / 2] of two rows twice; factor of the result, [dim]; what its sums begin
  // with, [dim / 2] of two channels twice, not masked, then masked.
  std::vector<std::byte> bytes;
  float score_scale;  // 1, or the power of two that q k are to be multiplied by where they may be huge
};

// Parts of all operands: 2 in fp32, 1 in tf32.
WarpPacked pack_warp_layer(const graph::AxialAttention& layer, const weights::LayerWeights& weights,
                           int parts);

}  // namespace warpweave::cuda::split
