// Repeats, templates and maps of tensor names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/helpers.h"

namespace warpweave::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

std::vector<std::string> templates(const Graph& graph) {
  std::vector<std::string> list;
  for (const Node& node : graph.nodes) list.push_back(node.name_template);
  return list;
}

std::vector<std::string> paths(const Graph& graph) {
  std::vector<std::string> list;
  for (const Node& node : graph.nodes) list.push_back(node.path);
  return list;
}

TEST(Repeat, FillsInItsIndex) {
  const Graph graph =
      parse(model("  - norm: {tensors: 'first.{name}'}\n"
                  "  - repeat:\n"
                  "      count: 3\n"
                  "      layers:\n"
                  "        - norm: {tensors: 'b{i}.{name}'}\n"));
  EXPECT_THAT(templates(graph), ElementsAre("first.{name}", "b0.{name}", "b1.{name}", "b2.{name}"));
  EXPECT_THAT(paths(graph), ElementsAre("layers[0]", "layers[1].repeat[0].layers[0]",
                                        "layers[1].repeat[1].layers[0]", "layers[1].repeat[2].layers[0]"));
  for (std::size_t n = 1; n < 4; ++n) EXPECT_EQ(graph.nodes[n].line, 7);
}

TEST(Repeat, Nests) {
  const Graph graph =
      parse(model("  - repeat:\n"
                  "      count: 2\n"
                  "      index: stage\n"
                  "      layers:\n"
                  "        - repeat: {count: 2, layers: [norm: {tensors: '{stage}/{i}/{stage}.{name}'}]}\n"
                  "        - norm: {tensors: '{stage}.{name}'}\n"));
  EXPECT_THAT(templates(graph), ElementsAre("0/0/0.{name}", "0/1/0.{name}", "0.{name}", "1/0/1.{name}",
                                            "1/1/1.{name}", "1.{name}"));
}

TEST(Repeat, SiblingsMayUseOneName) {
  const std::string layer = "  - repeat: {count: 1, layers: [norm: {tensors: 'a.{i}.{name}'}]}\n";
  EXPECT_EQ(parse(model(layer + layer)).nodes.size(), 2u);
}

TEST(Repeat, FollowsTheChannels) {
  const Graph graph = parse(model("  - repeat: {count: 2, layers: [linear: {out: 32}]}\n"));
  EXPECT_EQ(graph.nodes[0].layer->input_channels(), 64);
  EXPECT_EQ(graph.nodes[1].layer->input_channels(), 32);
}

TEST(Tensors, DefaultCountsTheLayers) {
  const Graph graph = parse(model("  - norm:\n  - repeat: {count: 2, layers: [norm: , norm: {}]}\n"));
  EXPECT_THAT(templates(graph), ElementsAre("layers.0.{name}", "layers.1.{name}", "layers.2.{name}",
                                            "layers.3.{name}", "layers.4.{name}"));
}

TEST(Tensors, TwoLayersMayShareTheirTensors) {
  EXPECT_THAT(templates(parse(model("  - repeat: {count: 2, layers: [norm: {tensors: 'shared.{name}'}]}\n"))),
              ElementsAre("shared.{name}", "shared.{name}"));
}

TEST(Tensors, TemplateMayBeNothingButTheName) {
  EXPECT_THAT(templates(parse(model("  - norm: {tensors: '{name}'}\n"))), ElementsAre("{name}"));
}

TEST(Tensors, MapOfPackedNames) {
  const Graph graph =
      parse(model("  - repeat:\n"
                  "      count: 2\n"
                  "      layers:\n"
                  "        - axial_attention:\n"
                  "            axis: row\n"
                  "            heads: 4\n"
                  "            norm: rms\n"
                  "            tensors: {norm.weight: 'a{i}.g', qkv.weight: 'a{i}.in', out.weight: 'a{i}.o', "
                  "out.bias: 12}\n"));
  EXPECT_EQ(graph.nodes[1].name_template, "");
  EXPECT_THAT(graph.nodes[1].name_map, ElementsAre(Pair("norm.weight", "a1.g"), Pair("qkv.weight", "a1.in"),
                                                   Pair("out.weight", "a1.o"), Pair("out.bias", "12")));
}

TEST(Tensors, MapOfParts) {
  const Graph graph =
      parse(model("  - axial_attention: {axis: row, heads: 4, norm: none, qkv_bias: true, out_bias: false, "
                  "tensors: {q.weight: a, "
                  "k.weight: b, v.weight: c, q.bias: d, k.bias: e, v.bias: f, out.weight: g}}\n"));
  EXPECT_EQ(graph.nodes[0].name_map.size(), 7u);
}

}  // namespace
}  // namespace warpweave::graph
