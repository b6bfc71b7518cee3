// What the host hands to the kernels of split/.
#pragma once

#include "common/params.h"

namespace warpweave::kernels::split {

// A weight w [n, k] in parts: rows [n rounded up to 128, 2, k rounded up to 32] fp16, factor and bias [n
// rounded up].
struct Weight {
  const void* rows;
  const float* factor;
  const float* bias;
};

// r[t, n] = factor[n] sum_k a[t, k] w[n, k] + bias[n]. Where it goes: q, k and v of all heads, see
// store_heads.
struct HeadsParams {
  Weight weight;
  void* y;                 // [token, n / head, parts, head] fp16
  const float* rotations;  // [position, dims / 2, (cos, sin)], or null
  Cells cells;             // of x, where the norm is part of the kernel
  i64 tokens, n;
  i64 position_divisor, length;  // position of token t: (t / position_divisor) % length
  int rotated;                   // columns of q and k together
  int rotated_channels;          // of each head, the first ones
};

// With a = norm(x).
struct ProjectParams {
  const float* x;
  HeadsParams heads;
  float eps;
};

struct LinearParams {
  const void* a;  // [tokens, parts, k] fp16
  HeadsParams heads;
  i64 k;
};

// y[cell(t), n] = r[t, n] + residual[cell(t), n]
struct OutputParams {
  const void* a;  // [tokens, parts, k] fp16
  Weight weight;
  float* y;
  const float* residual;  // may be y
  Cells cells;
  i64 tokens, n, k;
};

// As the driver encodes it (engine/cuda/tensor_map.h).
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

// Of kernels that take their operands by the copy engine: maps (k, row, part) in boxes of 32 of k.
struct WideProjectParams {
  TensorMap weight;  // 128 rows, both parts
  ProjectParams project;
};
template <class Params>
struct WideLinearParams {
  TensorMap weight, a;  // 128 rows each, all parts
  Params linear;
};

// A whole layer, see split/short_sequences.cuh and split/warp_kernels.cuh.
struct ShortParams {
  const float* x;
  float* y;                   // may be x
  const unsigned char* mask;  // null: every cell is valid
  const float* rotations;     // as LinearParams has it
  Weight qkv, out;            // of the one
  const void* layer;          // of the other: both weights as WarpLayer has them
  Sequences cells;            // of the grid
  unsigned sequences;         // below 2^31
  int length;
  float eps;
  float score_scale;  // q k times this are scores; of the other, their logarithms to base 2: 1 unless they
                      // may be huge
};

}  // namespace warpweave::kernels::split
