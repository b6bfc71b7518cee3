// Attention along every row or every column of the grid (spec: docs/models.md).
#pragma once

#include <optional>

#include "graph/layer.h"

namespace warpweave::graph {

enum class Axis { row, column };

// Rotary position embedding, Su et al. 2021 (RoFormer). `half` rotates channel pairs (c, c + dims/2),
// `interleaved` pairs (2c, 2c + 1); angle = position * theta^(-2c/dims), c = 0 .. dims/2 - 1.
struct Rope {
  enum class Style { half, interleaved };
  double theta = 10000;
  Style style = Style::half;
  std::int64_t dims = 0;  // the first `dims` channels of each head; even
};

struct AxialAttention final : Layer {
  std::int64_t dim = 0;  // channels of the grid
  Axis axis = Axis::row;
  std::int64_t heads = 1, head_dim = 0;
  Norm norm;
  bool qkv_bias = false, out_bias = true, residual = true, causal = false;
  double scale = 0;  // of the scores; head_dim^(-1/2) unless given
  std::optional<Rope> rope;

  std::int64_t inner() const noexcept { return heads * head_dim; }
  // Length of one sequence, and how many sequences one sample has.
  std::int64_t length(const CellShape& s) const noexcept { return axis == Axis::row ? s.columns : s.rows; }
  std::int64_t sequences(const CellShape& s) const noexcept { return axis == Axis::row ? s.rows : s.columns; }

  std::string_view type() const noexcept override { return "axial_attention"; }
  std::string describe() const override;
  std::vector<TensorSpec> tensors() const override;  // norm.*, qkv.weight [3*inner, dim], qkv.bias, out.*
  std::int64_t input_channels() const noexcept override { return dim; }
  CellShape output(const CellShape& input) const override { return input; }
  double flops(const CellShape& input) const override;
};

}  // namespace warpweave::graph
