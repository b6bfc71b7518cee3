// The model file: name, input, layers, with repeats expanded.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "graph/layer.h"
#include "graph/naming.h"
#include "graph/params.h"
#include "graph/registry.h"
#include "graph/yaml.h"
#include "io/text.h"

namespace warpweave::graph {
namespace {

constexpr std::int64_t max_layers = 10'000;  // of a model, repeats expanded

class GraphBuilder {
 public:
  explicit GraphBuilder(Graph& graph) : graph_(graph), channels_(graph.input_channels) {}

  // The list under a key `layers`.
  void add_list(const yaml::Value& list, const Place& place, const std::string& path) {
    if (list.kind != yaml::Kind::sequence) {
      place.fail(fmt::format("expected a list of layers, got {}", in_words(list)));
    }
    if (list.items.empty()) place.fail("expected at least one layer, got an empty list");
    for (std::size_t n = 0; n < list.items.size(); ++n) add(*list.items[n], fmt::format("{}[{}]", path, n));
  }

 private:
  void add(const yaml::Value& item, const std::string& path) {
    const Place place{graph_.file, item.line, path};
    if (item.kind != yaml::Kind::map || item.entries.empty()) {
      place.fail(fmt::format("expected a layer, a map of one key like 'norm: {{}}', got {}", in_words(item)));
    }
    const yaml::Entry& entry = item.entries.front();
    if (item.entries.size() > 1) {
      const yaml::Entry& second = item.entries[1];
      Place{graph_.file, second.line, path}.fail(fmt::format(
          "a layer is a map of one key, its type, but {} stands beside {}; parameters are indented below "
          "the type, and each layer has its own '-'",
          in_quotes(second.key), in_quotes(entry.key)));
    }
    const Place at{graph_.file, entry.line, entry.key};
    if (entry.key == "repeat") {
      repeat(*entry.value, at, path);
    } else {
      layer(entry, at, path);
    }
  }

  void layer(const yaml::Entry& entry, const Place& place, const std::string& path) {
    const auto types = layer_types();
    const auto type =
        std::find_if(types.begin(), types.end(), [&](const LayerType& t) { return t.name == entry.key; });
    if (type == types.end()) {
      std::vector<std::string_view> names;
      for (const LayerType& t : types) names.push_back(t.name);
      names.push_back("repeat");
      Place{graph_.file, entry.line, path}.fail(fmt::format("unknown layer type {}{} (legal types: {})",
                                                            in_quotes(entry.key), hint(entry.key, names),
                                                            join(names)));
    }
    if (graph_.nodes.size() >= static_cast<std::size_t>(max_layers)) {
      place.fail(
          fmt::format("more than {} layers, repeats expanded; a model may have that many", max_layers));
    }
    Params params(*entry.value, place, {"tensors"});
    Node node;
    node.layer = type->parse(params, channels_);
    node.path = path;
    node.line = entry.line;
    const yaml::Entry* tensors = params.find("tensors");
    name_tensors(node, graph_.nodes.size(), tensors != nullptr ? tensors->value : nullptr,
                 params.place("tensors"), indices_);
    channels_ = node.layer->output_channels();
    graph_.nodes.push_back(std::move(node));
  }

  void repeat(const yaml::Value& value, const Place& place, const std::string& path) {
    Params params(value, place);
    params.allow({"count", "index", "layers"});
    const std::int64_t count = params.integer("count", max_layers);
    const std::string index = params.has("index") ? params.word("index") : "i";
    check_index(index, params.place("index"));
    const yaml::Entry* layers = params.find("layers");
    if (layers == nullptr) place.fail("missing key 'layers', the list of layers to repeat");
    indices_.push_back({index, 0, place.line});
    for (std::int64_t n = 0; n < count; ++n) {
      indices_.back().value = n;
      add_list(*layers->value, params.place("layers"), fmt::format("{}.repeat[{}].layers", path, n));
    }
    indices_.pop_back();
  }

  void check_index(const std::string& index, const Place& place) const {
    const auto is_word = [](char c) {
      return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    };
    if (!std::all_of(index.begin(), index.end(), is_word) || (index[0] >= '0' && index[0] <= '9')) {
      place.fail(fmt::format("expected a name of letters, digits and _, got {}", in_quotes(index)));
    }
    if (index == "name")
      place.fail("'name' stands for the tensor's name in templates; use another, like 'i'");
    for (const RepeatIndex& outer : indices_) {
      if (outer.name == index) {
        place.fail(
            fmt::format("'{}' is the index of the repeat around it, on line {}; nested repeats need "
                        "different names, like 'index: j'",
                        index, outer.line));
      }
    }
  }

  Graph& graph_;
  std::int64_t channels_;  // of the grid so far
  std::vector<RepeatIndex> indices_;
};

}  // namespace

Graph parse_graph(const std::string& text, const std::string& file) {
  const yaml::Document document = yaml::parse(text, file);
  if (document.root->kind != yaml::Kind::map) {
    Place{file, document.root->line, {}}.fail(
        fmt::format("expected a map with input and layers, got {}", in_words(*document.root)));
  }
  Params top(*document.root, {file, document.root->line, {}});
  top.allow({"name", "input", "layers"});
  Graph graph;
  graph.file = file;
  graph.name = top.has("name") ? top.word("name") : std::filesystem::path(file).stem().string();
  if (!top.has("input")) top.place().fail("missing key 'input', like 'input: {dim: 64}'");
  Params input = top.child("input");
  input.allow({"dim"});
  graph.input_channels = input.integer("dim");
  const yaml::Entry* layers = top.find("layers");
  if (layers == nullptr) top.place().fail("missing key 'layers', the list of layers");
  GraphBuilder(graph).add_list(*layers->value, top.place("layers"), "layers");
  return graph;
}

Graph load_graph(const std::string& file) { return parse_graph(yaml::read_file(file), file); }

}  // namespace warpweave::graph
