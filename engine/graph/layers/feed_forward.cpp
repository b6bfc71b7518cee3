#include "graph/layers/feed_forward.h"

#include <fmt/format.h>

#include "graph/layers/norm_params.h"

namespace warpweave::graph {

std::string_view to_string(Activation activation) noexcept {
  switch (activation) {
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::relu:
      return "relu";
    case Activation::silu:
      return "silu";
  }
  return "?";
}

std::string FeedForward::describe() const {
  return fmt::format("feed_forward {} -> {} -> {}, {}{}{}{}", dim, hidden, dim, to_string(activation),
                     describe_norm(norm), bias ? "" : ", no bias", residual ? "" : ", no residual");
}

std::vector<TensorSpec> FeedForward::tensors() const {
  std::vector<TensorSpec> list;
  append_norm_tensors(list, norm, dim);
  list.push_back({"up.weight", {hidden, dim}});
  if (bias) list.push_back({"up.bias", {hidden}});
  list.push_back({"down.weight", {dim, hidden}});
  if (bias) list.push_back({"down.bias", {dim}});
  return list;
}

double FeedForward::flops(const CellShape& input) const {
  const double cells = static_cast<double>(input.rows) * static_cast<double>(input.columns);
  return 4 * cells * static_cast<double>(dim) * static_cast<double>(hidden);
}

std::unique_ptr<Layer> parse_feed_forward(Params& params, std::int64_t channels) {
  params.allow({"hidden", "activation", "norm", "eps", "bias", "residual"});
  auto layer = std::make_unique<FeedForward>();
  layer->dim = channels;
  layer->hidden = params.integer("hidden");
  layer->activation = params.choice<Activation>("activation",
                                                {{"gelu", Activation::gelu},
                                                 {"gelu_tanh", Activation::gelu_tanh},
                                                 {"relu", Activation::relu},
                                                 {"silu", Activation::silu}},
                                                layer->activation);
  layer->norm = read_norm(params, "norm", true);
  layer->bias = params.flag("bias", layer->bias);
  layer->residual = params.flag("residual", layer->residual);
  return layer;
}

}  // namespace warpweave::graph
