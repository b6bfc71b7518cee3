// warpweave inspect: what a model is made of, what its weight file holds, and how a shape would be run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <set>

#include "cli/commands.h"
#include "cli/options.h"
#include "graph/layer.h"
#include "plan/explain.h"
#include "weights/safetensors.h"

namespace warpweave::cli {
namespace {

using weights::SafetensorsEntry;
using weights::SafetensorsFile;

// A tensor that the model wants, under its name in the weight file.
struct WantedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
};

// The weight file's name for a canonical one; empty where a map does not name it.
std::string file_name(const graph::Node& node, const std::string& canonical) {
  if (node.name_map.empty()) {
    std::string name = node.name_template;
    constexpr std::string_view kHole = "{name}";
    for (std::size_t at = 0; (at = name.find(kHole, at)) != name.npos; at += canonical.size()) {
      name.replace(at, kHole.size(), canonical);
    }
    return name;
  }
  for (const auto& [from, to] : node.name_map) {
    if (from == canonical) return to;
  }
  return {};
}

// The tensors of a layer, whole or in the parts that the map names or the file holds.
std::vector<WantedTensor> wanted_tensors(const graph::Node& node, const SafetensorsFile* file) {
  std::vector<WantedTensor> wanted;
  for (const graph::TensorSpec& spec : node.layer->tensors()) {
    const std::string whole = file_name(node, spec.name);
    const auto in_file = [&](const graph::TensorSpec& part) {
      return file && file->find(file_name(node, part.name));
    };
    const bool in_parts = !spec.parts.empty() &&
                          (whole.empty() || (file && !file->find(whole) &&
                                             std::any_of(spec.parts.begin(), spec.parts.end(), in_file)));
    if (!in_parts) wanted.push_back({whole, spec.shape});
    if (in_parts) {
      for (const graph::TensorSpec& part : spec.parts)
        wanted.push_back({file_name(node, part.name), part.shape});
    }
  }
  return wanted;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

double parameters(const std::vector<WantedTensor>& tensors) {
  double total = 0;
  for (const WantedTensor& t : tensors) {
    double count = 1;
    for (const std::int64_t size : t.shape) count *= static_cast<double>(size);
    total += count;
  }
  return total;
}

std::string status(const WantedTensor& tensor, const SafetensorsFile& file) {
  const SafetensorsEntry* entry = file.find(tensor.name);
  if (!entry) return "MISSING";
  if (entry->shape != tensor.shape) return "WRONG SHAPE " + shape_text(entry->shape);
  return "found, " + entry->dtype;
}

void print_layers(const graph::Graph& graph, const SafetensorsFile* file) {
  std::set<std::string> taken;
  std::vector<std::vector<WantedTensor>> tensors;
  std::size_t name_width = 0, shape_width = 0;
  double total = 0;
  for (const graph::Node& node : graph.nodes) {
    tensors.push_back(wanted_tensors(node, file));
    total += parameters(tensors.back());
    for (const WantedTensor& t : tensors.back()) {
      taken.insert(t.name);
      name_width = std::max(name_width, t.name.size());
      shape_width = std::max(shape_width, shape_text(t.shape).size());
    }
  }
  fmt::print("model {} ({}): input of {} channels, {} layers, {:.0f} parameters\n\n", graph.name, graph.file,
             graph.input_channels, graph.nodes.size(), total);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    fmt::print("{}: {}\n", graph.nodes[i].path, graph.nodes[i].layer->describe());
    for (const WantedTensor& t : tensors[i]) {
      const std::string shape = shape_text(t.shape);
      if (file) {
        fmt::print("    {:<{}}  {:<{}}  {}\n", t.name, name_width, shape, shape_width, status(t, *file));
      } else {
        fmt::print("    {:<{}}  {}\n", t.name, name_width, shape);
      }
    }
  }
  if (!file) return;
  for (const SafetensorsEntry& entry : file->entries()) {
    if (taken.contains(entry.name)) continue;
    fmt::print("not taken by any layer: {}  {}  {}\n", entry.name, shape_text(entry.shape), entry.dtype);
  }
}

// The plan with its reasons. No grid and no workspace is taken: a plan may be looked at on a smaller machine.
void print_plan(const Model& model, const Shape& shape, const CommonOptions& options) {
  const Engine engine = make_engine(model, options);
  const std::vector<PlannedLayer> planned = engine.plan(shape);
  const std::int64_t workspace = engine.workspace_bytes(shape);
  fmt::print("\nplan for an input of {} on {} in {}\n",
             to_string(GridShape{shape.batch, shape.rows, shape.columns, model.input_channels()}),
             to_string(engine.device()), to_string(engine.precision()));
  fmt::print("{}", plan::explain(planned, workspace));
}

struct InspectCommand {
  CommonOptions common;
  std::string config, weights, shape;

  int operator()() const {
    (void)engine_options(common);  // bad usage comes first
    (void)output_type(common);
    const Shape wanted = shape.empty() ? Shape{} : parse_shape(shape);
    const graph::Graph graph = graph::load_graph(config);
    std::unique_ptr<const SafetensorsFile> file;
    if (!weights.empty()) file = std::make_unique<const SafetensorsFile>(weights);
    print_layers(graph, file.get());
    // A file that does not fit is shown first, then refused as every command refuses it.
    if (file) (void)Model::load(config, weights, {.allow_unused = common.allow_unused});
    if (shape.empty()) {
      fmt::print("\nWith --shape B,H,W: the plan, the reasons behind it, operations, bytes and workspace.\n");
      return 0;
    }
    // The plan does not depend on the weights' values.
    print_plan(Model::random(config), wanted, common);
    return 0;
  }
};

}  // namespace

Command add_inspect(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "inspect", "Tells layers, tensors, plan and reasons, bytes, operations and workspace");
  auto options = std::make_shared<InspectCommand>();
  command->add_option("--config", options->config, "model file (YAML)")->required();
  command->add_option("--weights", options->weights,
                      "weight file (safetensors) to check the tensors against");
  command->add_option("--shape", options->shape, "B,H,W: batch, rows and columns of the input to plan for");
  add_common_options(*command, options->common);
  return {command, [options] { return (*options)(); }};
}

}  // namespace warpweave::cli
