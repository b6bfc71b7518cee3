// X W^T + b per cell; the channels become `out`.
#pragma once

#include "graph/layer.h"

namespace warpweave::graph {

struct Linear final : Layer {
  std::int64_t dim = 0, out = 0;
  bool bias = true;

  std::string_view type() const noexcept override { return "linear"; }
  std::string describe() const override;
  std::vector<TensorSpec> tensors() const override;  // weight [out, dim], bias [out]
  std::int64_t input_channels() const noexcept override { return dim; }
  std::int64_t output_channels() const noexcept override { return out; }
  CellShape output(const CellShape& input) const override;
  double flops(const CellShape& input) const override;
};

}  // namespace warpweave::graph
