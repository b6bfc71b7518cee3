// What a wide projection is told at launch; the rest is compiled in (long/project_wide.cuh).
#pragma once

#include "common/params.h"

namespace warpweave::kernels {

// As the driver encodes it (engine/cuda/tensor_map.h).
struct alignas(64) ProjectTensorMap {
  unsigned char bytes[128];
};

// The tokens of a slice of a grid as pieces of tokens that lie one behind the other on both sides: the whole
// slice, or one for each row of a band of columns. Token i of piece p is token p * length + i where tokens
// lie dense, and cell first + p * pitch + i of the grid. Tiles of tokens do not reach over the end of a
// piece. At most 2^24 tokens.
struct TokenPieces {
  i64 first, pitch;
  int pieces, length;
  int tiles;  // of a piece
};

struct WideParams {
  ProjectTensorMap x;         // (channel, token, piece, 1), boxes of 64 channels of 128 tokens, swizzled
  ProjectTensorMap added;     // the same of the residual
  const void* tokens_x;       // [.., k], what the map tells of
  void* y;                    // [.., n]
  const void* residual;       // as y, may be y; null unless compiled for it
  const unsigned char* mask;  // one per cell of the grid, non-zero = valid; null unless compiled for it
  const void* weights;        // layout::WidePlan
  const float* rotation;      // (cos, sin) [length][head / 2]; null unless compiled for RoPE
  TokenPieces tokens;
  float eps;                     // of the norm
  int position_divisor, length;  // position of token t: t / position_divisor % length
};

}  // namespace warpweave::kernels
