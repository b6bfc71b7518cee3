// What the host hands to split/linear.cuh.
#pragma once

#include "common/params.h"

namespace warpweave::kernels::split {

// r[t, n] = factor[n] sum_k a[t, k] w[n, k] + bias[n]; see the kernel for where it goes.
struct LinearParams {
  const void* a;        // [tokens, parts, k] fp16
  const void* w;        // [n rounded up to the block's columns, parts, k rounded up to 32] fp16
  const float* factor;  // [n rounded up]
  const float* bias;    // [n rounded up]
  void* y;
  const void* residual;    // float32 like y, or null; may be y
  const float* rotations;  // [position, dims / 2, (cos, sin)], or null
  Cells cells;
  i64 tokens, n, k;
  i64 position_divisor, length;  // position of token t: (t / position_divisor) % length
  int rotated;                   // columns of q and k together
  int rotated_channels;          // of each head, the first ones
};

}  // namespace warpweave::kernels::split
