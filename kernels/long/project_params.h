// What a projection is told at launch; the rest is compiled in (long/project.cuh).
#pragma once

#include "common/params.h"

namespace warpweave::kernels {

// Of the grid side, cells are found by `cells`; the other side is dense. At most 2^24 tokens.
struct ProjectParams {
  const void* x;              // [.., k]
  void* y;                    // [.., n]
  const void* residual;       // as y, may be y; null unless compiled for it
  const unsigned char* mask;  // one per cell of the grid, non-zero = valid; null unless compiled for it
  const void* weights;        // layout::ProjectPlan
  const float* rotation;      // (cos, sin) [length][head / 2]; null unless compiled for RoPE
  Cells cells;
  int tokens;
  float eps;                     // of the norm
  int position_divisor, length;  // position of token t: t / position_divisor % length
};

}  // namespace warpweave::kernels
