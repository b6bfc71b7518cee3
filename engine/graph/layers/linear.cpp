#include "graph/layers/linear.h"

#include <fmt/format.h>

#include "graph/params.h"

namespace warpweave::graph {

std::string Linear::describe() const {
  return fmt::format("linear {} -> {}{}", dim, out, bias ? "" : ", no bias");
}

std::vector<TensorSpec> Linear::tensors() const {
  std::vector<TensorSpec> list = {{"weight", {out, dim}}};
  if (bias) list.push_back({"bias", {out}});
  return list;
}

CellShape Linear::output(const CellShape& input) const { return {input.rows, input.columns, out}; }

double Linear::flops(const CellShape& input) const {
  const double cells = static_cast<double>(input.rows) * static_cast<double>(input.columns);
  return 2 * cells * static_cast<double>(dim) * static_cast<double>(out);
}

std::unique_ptr<Layer> parse_linear(Params& params, std::int64_t channels) {
  params.allow({"out", "bias"});
  auto layer = std::make_unique<Linear>();
  layer->dim = channels;
  layer->out = params.integer("out");
  layer->bias = params.flag("bias", layer->bias);
  return layer;
}

}  // namespace warpweave::graph
