// X * residual + act(norm(X) Wup^T + bup) Wdown^T + bdown, per cell.
#pragma once

#include "graph/layer.h"

namespace warpweave::graph {

// gelu is the exact x * Phi(x) (erf); gelu_tanh its tanh form, Hendrycks and Gimpel 2016; silu is x *
// sigmoid(x).
enum class Activation { gelu, gelu_tanh, relu, silu };
std::string_view to_string(Activation activation) noexcept;

struct FeedForward final : Layer {
  std::int64_t dim = 0, hidden = 0;
  Activation activation = Activation::gelu;
  Norm norm;
  bool bias = true, residual = true;

  std::string_view type() const noexcept override { return "feed_forward"; }
  std::string describe() const override;
  std::vector<TensorSpec> tensors() const override;  // norm.*, up.weight [hidden, dim], up.bias, down.*
  std::int64_t input_channels() const noexcept override { return dim; }
  CellShape output(const CellShape& input) const override { return input; }
  double flops(const CellShape& input) const override;
};

}  // namespace warpweave::graph
