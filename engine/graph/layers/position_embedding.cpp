#include "graph/layers/position_embedding.h"

#include <fmt/format.h>

#include "graph/params.h"
#include "warpweave/error.h"

namespace warpweave::graph {

std::string PositionEmbedding::describe() const {
  return fmt::format("position_embedding up to {} x {}", rows, columns);
}

std::vector<TensorSpec> PositionEmbedding::tensors() const {
  return {{"rows", {rows, dim}}, {"columns", {columns, dim}}};
}

CellShape PositionEmbedding::output(const CellShape& input) const {
  if (input.rows > rows || input.columns > columns) {
    throw Error(ErrorCode::input,
                fmt::format("a grid of {} x {} is larger than the tables of positions, {} x {}", input.rows,
                            input.columns, rows, columns));
  }
  return input;
}

double PositionEmbedding::flops(const CellShape&) const { return 0; }

std::unique_ptr<Layer> parse_position_embedding(Params& params, std::int64_t channels) {
  params.allow({"rows", "columns"});
  auto layer = std::make_unique<PositionEmbedding>();
  layer->dim = channels;
  layer->rows = params.integer("rows", max_side);
  layer->columns = params.integer("columns", max_side);
  return layer;
}

}  // namespace warpweave::graph
