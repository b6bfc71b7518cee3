// X[b, i, j] + R[i] + C[j] from learned tables; a grid larger than the tables is an input error.
#pragma once

#include "graph/layer.h"

namespace warpweave::graph {

struct PositionEmbedding final : Layer {
  std::int64_t dim = 0, rows = 0, columns = 0;

  std::string_view type() const noexcept override { return "position_embedding"; }
  std::string describe() const override;
  std::vector<TensorSpec> tensors() const override;  // rows [rows, dim], columns [columns, dim]
  std::int64_t input_channels() const noexcept override { return dim; }
  CellShape output(const CellShape& input) const override;
  double flops(const CellShape& input) const override;
};

}  // namespace warpweave::graph
