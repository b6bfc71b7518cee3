// The model files that come with the project.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "graph/helpers.h"
#include "warpweave/model.h"

namespace warpweave::graph {
namespace {

std::filesystem::path configs() { return std::filesystem::path(WARPWEAVE_SOURCE_DIR) / "configs"; }

Graph load(const std::string& name) { return load_graph((configs() / name).string()); }

// Every tensor a graph asks the weight file for.
std::set<std::string> tensor_names(const Graph& graph) {
  std::set<std::string> names;
  for (const Node& node : graph.nodes) {
    for (const auto& [canonical, name] : node.name_map) names.insert(name);
    if (!node.name_map.empty()) continue;
    for (const TensorSpec& spec : node.layer->tensors()) {
      std::string name = node.name_template;
      name.replace(name.find("{name}"), 6, spec.name);
      names.insert(name);
    }
  }
  return names;
}

TEST(ModelFiles, AllLoadAndNameTheirTensorsApart) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(configs())) {
    if (entry.path().extension() != ".yaml") continue;
    SCOPED_TRACE(entry.path().string());
    ++files;
    const Graph graph = load_graph(entry.path().string());
    EXPECT_EQ(graph.name, entry.path().stem().string());
    std::size_t tensors = 0;
    for (const Node& node : graph.nodes) {
      tensors += node.name_map.empty() ? node.layer->tensors().size() : node.name_map.size();
    }
    EXPECT_EQ(tensor_names(graph).size(), tensors);
    // 32 x 32 is a whole number of patches for each of them.
    EXPECT_EQ(graph.shapes({32, 32, graph.input_channels}).size(), graph.nodes.size());
  }
  EXPECT_GE(files, 7);
}

TEST(ModelFiles, SeedBlockHasTheNamesOfItsModule) {
  const Graph graph = load("axial_block.yaml");
  EXPECT_THAT(tensor_names(graph),
              testing::UnorderedElementsAre(
                  "row_norm.weight", "row_norm.bias", "row_qkv.weight", "row_out.weight", "row_out.bias",
                  "col_norm.weight", "col_norm.bias", "col_qkv.weight", "col_out.weight", "col_out.bias"));
  double flops = 0;  // 4 samples of 32 x 32: 0.34 GFLOP
  for (const Node& node : graph.nodes) flops += 4 * node.layer->flops({32, 32, 64});
  EXPECT_NEAR(flops, 0.336e9, 0.001e9);
}

TEST(ModelFiles, TakeRandomWeights) {
  for (const auto& entry : std::filesystem::directory_iterator(configs())) {
    if (entry.path().extension() != ".yaml") continue;
    SCOPED_TRACE(entry.path().string());
    const Model model = Model::random(entry.path());
    EXPECT_EQ(model.name(), entry.path().stem().string());
    EXPECT_EQ(model.output_shape({2, 32, 32}).batch, 2);
  }
}

TEST(ModelFiles, WhatComesOut) {
  EXPECT_EQ(load("weather.yaml").shapes({720, 1440, 69}).back(), (CellShape{720, 1440, 69}));
  EXPECT_EQ(load("image_classifier.yaml").shapes({224, 224, 3}).back(), (CellShape{14, 14, 1000}));
  EXPECT_EQ(load("msa.yaml").shapes({128, 256, 32}).back(), (CellShape{128, 256, 256}));
  EXPECT_EQ(load("audio.yaml").shapes({100, 257, 2}).back(), (CellShape{100, 257, 2}));
  EXPECT_EQ(load("table.yaml").shapes({1000, 12, 64}).back(), (CellShape{1000, 12, 1}));
  EXPECT_EQ(load("pair.yaml").shapes({99, 99, 128}).back(), (CellShape{99, 99, 128}));
}

}  // namespace
}  // namespace warpweave::graph
