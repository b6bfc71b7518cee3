// LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) of every cell.
#pragma once

#include "graph/layer.h"

namespace warpweave::graph {

struct NormLayer final : Layer {
  std::int64_t dim = 0;
  Norm norm;  // never NormKind::none

  std::string_view type() const noexcept override { return "norm"; }
  std::string describe() const override;
  std::vector<TensorSpec> tensors() const override;  // norm.weight, norm.bias
  std::int64_t input_channels() const noexcept override { return dim; }
  CellShape output(const CellShape& input) const override { return input; }
  double flops(const CellShape& input) const override;
};

}  // namespace warpweave::graph
