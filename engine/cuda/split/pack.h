// Weights of a layer as operands in two parts (kernels/split/parts.cuh), with the powers of two that keep
// every operand within fp16. Host code alone; needs no CUDA.
//
// A normalised token is no longer than sqrt(dim), so by Cauchy and Schwarz |w n + b| <= sqrt(dim) |w| + |b|
// for each row w of the projection: q, k and v are bounded before any input is seen, and attention's result
// is a mean of v.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/layers/axial_attention.h"
#include "weights/load.h"

namespace warpweave::cuda::split {

// r = factor * sum(a w) + bias, with a and w as the kernel has them. Row packed_row(n) makes column n of the
// result; factor and bias are in the order of columns.
struct Operand {
  std::vector<std::uint16_t> rows;  // [n rounded up to kColumns, kWeightParts, k rounded up to kDepth], fp16
  std::vector<float> factor, bias;  // [n rounded up to kColumns]
};

struct Packed {
  Operand qkv, out;   // n: 3 heads * head_pitch, in the order part, head, channel; and dim
  float score_scale;  // of q k as they are stored; positive
};

inline constexpr int kWeightParts = 2;
inline constexpr int kColumns = 128, kDepth = 32;  // multiples that the product kernels take

// Permutes within 32, so that a lane of a product holds neighbouring columns (kernels/split/tile.cuh).
constexpr std::int64_t packed_row(std::int64_t column) {
  return column / 32 * 32 + column % 8 / 2 * 8 + column % 32 / 8 * 2 + column % 2;
}

// Permutes within 16, so that a lane's two pairs of a fragment are four neighbouring channels.
constexpr std::int64_t warp_place(std::int64_t channel) {
  return channel / 16 * 16 + channel % 4 / 2 * 8 + channel % 16 / 4 * 2 + channel % 2;
}

// Channels of a token, and of a head, in memory.
std::int64_t token_pitch(std::int64_t dim);      // a multiple of 8
std::int64_t head_pitch(std::int64_t head_dim);  // a multiple of 16

int token_shift(std::int64_t dim);  // normalised tokens are stored times 2^this

// RoPE's pairs become neighbours, the norm's weight and bias go into qkv.
Packed pack(const graph::AxialAttention& layer, const weights::LayerWeights& weights);

// Whether the kernels for one warp a sequence know layers of this width.
constexpr std::int64_t kMostWarpChannels = 64, kMostWarpHead = 32;
inline bool warp_takes(const graph::AxialAttention& layer) {
  return layer.dim % 16 == 0 && layer.dim <= kMostWarpChannels &&
         head_pitch(layer.head_dim) <= kMostWarpHead &&
         layer.heads * head_pitch(layer.head_dim) <= kMostWarpChannels;
}

}  // namespace warpweave::cuda::split
