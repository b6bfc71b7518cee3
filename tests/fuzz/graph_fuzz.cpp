// Any bytes as a model file: parse_graph gives a graph or throws Error(input) of one line, and a graph that
// parsed keeps what the headers promise. Found by libFuzzer, -fsanitize=fuzzer,address,undefined.
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "graph/layer.h"
#include "warpweave/error.h"

namespace {

using warpweave::Error;
using warpweave::ErrorCode;
namespace graph = warpweave::graph;

void require(bool holds, const char* promise) {
  if (holds) return;
  std::cerr << "broken promise: " << promise << '\n';
  std::abort();
}

void check_error(const Error& e) {
  const std::string message = e.what();
  require(e.code() == ErrorCode::input, "a bad model file is an input error");
  require(message.rfind("fuzz.yaml:", 0) == 0, "an error begins with the file");
  require(message.find('\n') == std::string::npos, "an error is one line");
}

void check_graph(const graph::Graph& g) {
  require(!g.nodes.empty() && g.nodes.size() <= 10'000, "a model has 1 to 10,000 layers");
  std::int64_t channels = g.input_channels;
  for (const graph::Node& node : g.nodes) {
    require(node.layer->input_channels() == channels, "channels flow from layer to layer");
    channels = node.layer->output_channels();
    require(channels >= 1, "a layer has channels");
    require(node.line >= 1 && !node.path.empty(), "a layer knows its place");
    require(node.name_map.empty() == (node.name_template.find("{name}") != std::string::npos),
            "a layer has a template or a map of names");
    require(!node.layer->describe().empty(), "a layer describes itself");
    for (const graph::TensorSpec& spec : node.layer->tensors()) {
      std::int64_t rows = 0;
      for (const graph::TensorSpec& part : spec.parts) rows += part.shape.at(0);
      require(spec.parts.empty() || rows == spec.shape.at(0), "parts make up the whole");
      for (const std::int64_t side : spec.shape) require(side >= 1, "tensors are not empty");
    }
  }
}

void check_shapes(const graph::Graph& g, graph::CellShape input) {
  try {
    const auto shapes = g.shapes(input);
    require(shapes.size() == g.nodes.size(), "one shape for each layer");
    for (std::size_t n = 0; n < shapes.size(); ++n) {
      require(shapes[n].cells() >= 1, "grids are not empty");
      require(shapes[n].channels == g.nodes[n].layer->output_channels(), "shapes have the layers' channels");
      require(g.nodes[n].layer->flops(input) >= 0, "operation counts are not negative");
      input = shapes[n];
    }
  } catch (const Error& e) {
    check_error(e);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const graph::Graph g =
        graph::parse_graph(std::string(reinterpret_cast<const char*>(data), size), "fuzz.yaml");
    check_graph(g);
    check_shapes(g, {1, 1, g.input_channels});
    check_shapes(g, {16, 48, g.input_channels});
    check_shapes(g, {std::int64_t{1} << 31, 5, g.input_channels});
  } catch (const Error& e) {
    check_error(e);
  }
  return 0;
}
