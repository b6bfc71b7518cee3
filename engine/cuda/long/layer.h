// One axial attention layer as the long family sees it: its two projections, and their weights folded.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/family.h"
#include "cuda/long/projection.h"
#include "graph/layers/axial_attention.h"
#include "weights/load.h"

namespace warpweave::cuda::long_sequences {

struct LayerShapes {
  std::int64_t head_pitch, inner;  // elements, of a head and of all heads as they lie in the workspace
  ProjectionShape qkv, output;
};

LayerShapes shapes_of(const graph::AxialAttention& layer, std::int64_t head_pitch, bool masked);

struct FoldedWeights {
  std::vector<float> qkv, qkv_bias;        // [3 inner, dim], [3 inner]
  std::vector<float> output, output_bias;  // [dim, inner], [dim] or empty
};

// Whether q comes multiplied by scale log2(e); not in fp16 where that would enlarge it, since fp16 ends at
// 65504.
bool folds_scale(const graph::AxialAttention& layer, Precision precision);

// The norm's gain goes into the columns of Wqkv and its bias into the qkv bias, and with a layer norm the
// rows of Wqkv lose their means; scale log2(e), or else its sign, goes into q. Head channels of q and k are
// reordered so that RoPE's pairs are neighbours, which their product does not notice. Padded head channels
// are zero.
FoldedWeights fold(const graph::AxialAttention& layer, const LayerShapes& shapes,
                   const weights::LayerWeights& weights, Precision precision);

}  // namespace warpweave::cuda::long_sequences
