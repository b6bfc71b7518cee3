// The weights of a layer as the kernels of split multiply by them, in double, before they are cut into
// operands. Host code alone.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/layers/axial_attention.h"
#include "weights/load.h"

namespace warpweave::cuda::split {

struct Matrix {
  std::int64_t n, k;
  std::vector<double> values, bias;
  Matrix(std::int64_t rows, std::int64_t columns)
      : n(rows),
        k(columns),
        values(static_cast<std::size_t>(rows * columns)),
        bias(static_cast<std::size_t>(rows)) {}
  double* row(std::int64_t r) { return values.data() + r * k; }
  const double* row(std::int64_t r) const { return values.data() + r * k; }
};

// Rows in the order part, head, channel of head_pitch(): RoPE's pairs are neighbours, the norm's weight and
// bias are in it, and a negative scale of the scores is.
Matrix qkv_matrix(const graph::AxialAttention& layer, const weights::LayerWeights& weights);

// Columns in the order head, channel of head_pitch().
Matrix out_matrix(const graph::AxialAttention& layer, const weights::LayerWeights& weights);

// The most that |w n + b| can be for row r and any normalised token n: sqrt(dim) |w| + |b|.
double row_bound(const Matrix& m, std::int64_t r);

}  // namespace warpweave::cuda::split
