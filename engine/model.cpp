#include "warpweave/model.h"

#include <fmt/format.h>

#include "edge.h"
#include "model_data.h"
#include "warpweave/error.h"

namespace warpweave {

Model Model::load(const std::filesystem::path& config, const std::filesystem::path& weights,
                  const LoadOptions& options) {
  return at_edge("loading the model", [&] {
    auto data = std::make_shared<detail::ModelData>();
    data->graph = graph::load_graph(config.string());
    data->weights = weights::load_weights(data->graph, weights.string(), options.allow_unused);
    return Model(std::move(data));
  });
}

Model Model::random(const std::filesystem::path& config, std::uint64_t seed) {
  return at_edge("making the model", [&] {
    auto data = std::make_shared<detail::ModelData>();
    data->graph = graph::load_graph(config.string());
    data->weights = weights::random_weights(data->graph, seed);
    return Model(std::move(data));
  });
}

const std::string& Model::name() const noexcept { return data_->graph.name; }

std::int64_t Model::input_channels() const noexcept { return data_->graph.input_channels; }

GridShape Model::output_shape(const Shape& input) const {
  check(GridShape{input.batch, input.rows, input.columns, input_channels()}, "input grid");
  return at_edge("finding the output's shape", [&]() -> GridShape {
    const auto shapes = data_->graph.shapes({input.rows, input.columns, input_channels()});
    const graph::CellShape last =
        shapes.empty() ? graph::CellShape{input.rows, input.columns, input_channels()} : shapes.back();
    return {input.batch, last.rows, last.columns, last.channels};
  });
}

}  // namespace warpweave
