// What the host hands to kernels. Plain structures that host and device compilers lay out alike: pointers,
// 64-bit integers, then 32-bit values.
//
// Layers run on slices of a grid, so that a workspace can be small. The tokens of a slice are numbered 0, 1,
// ... in row-major order and lie dense in the workspace; Cells finds their place in the grid.
#pragma once

namespace warpweave::kernels {

using i64 = long long;

// Token t of a slice is cell first + (t / columns) * pitch + t % columns of the grid.
struct Cells {
  i64 first, columns, pitch;
};

// Element l of sequence s: (s / inner) * outer_stride + (s % inner) * inner_stride + l * step. Rows and
// columns of a grid differ in these numbers alone.
struct Sequences {
  i64 inner, outer_stride, inner_stride, step;
};

// Element types of grids at the interface; the values are those of warpweave::DType.
enum class ElementType : int { f64 = 0, f32 = 1, f16 = 2, bf16 = 3 };

struct ConvertParams {
  const void* x;
  void* y;
  i64 count;
  ElementType from, to;
};

// y[t, 0 .. pitch) = norm(x[cell(t), 0 .. dim)) * weight + bias, then zeros; copy[cell(t)] = x[cell(t)].
struct NormParams {
  const void* x;
  void* y;
  void* copy;           // null: no copy
  const float* weight;  // null: 1
  const float* bias;    // null: 0
  Cells cells;
  i64 tokens, dim, pitch;
  float eps;
  float keep = 0;  // the share of y that is to stay in L2; above 0 for composed::norm
};

// y[cell(t), n] = act(sum_k a[t, k] w[n, k] + bias[n]) + residual[cell(t), n]
struct LinearParams {
  const void* a;         // [tokens, k]
  const void* w;         // [n, k]
  const float* bias;     // null: 0
  const void* residual;  // null: none; may be y
  void* y;
  Cells cells;
  i64 tokens, n, k;
};

// o[token, head * HEAD_DIM + d] from qkv[token, 3 * heads * HEAD_DIM], see the kernels.
struct AttentionParams {
  const void* qkv;
  void* o;
  const unsigned char* mask;  // null: every cell is valid
  Sequences tokens, mask_cells;
  i64 sequences, length, heads;
  float scale;
};

// Rotates the first `dims` channels of each head of q and k. table[position, c] = (cos, sin).
struct RopeParams {
  void* qkv;
  const float* table;
  i64 tokens, heads, head_dim, dims;
  i64 position_divisor, length;  // position of token t: (t / position_divisor) % length
  int interleaved;
};

struct PositionParams {
  const void* x;
  void* y;
  const float* row_table;
  const float* column_table;
  i64 count, rows, columns, dim;
};

// Between an image [batch, rows * patch, columns * patch, channels] and flattened patches
// [batch, rows, columns, (patch row, patch column, channel)], zeros up to `pitch` elements per patch.
struct PatchParams {
  const void* x;
  void* y;
  i64 first, tokens;  // patches, counted over the whole batch
  i64 columns, patch, channels, pitch;
};

// h[i] = act(h[i])
struct ActivateParams {
  void* h;
  i64 count;
};

// y[cell(t), n] = p[t, n] + bias[n] + residual[cell(t), n], n < dim <= pitch
struct FinishParams {
  const float* p;
  const float* bias;
  const void* residual;
  void* y;
  Cells cells;
  i64 tokens, dim, pitch;
};

}  // namespace warpweave::kernels
