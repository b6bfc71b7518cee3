// Each layer type: defaults, every option, tensors, shapes and operation counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "graph/helpers.h"
#include "graph/layers/axial_attention.h"
#include "graph/layers/feed_forward.h"
#include "graph/layers/norm.h"
#include "graph/registry.h"

namespace warpweave::graph {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The only layer of a model, and the model that holds it.
template <class T>
struct Only {
  explicit Only(const std::string& layer, int dim = 64) : graph(parse(model("  - " + layer + "\n", dim))) {}
  const T* operator->() const { return dynamic_cast<const T*>(graph.nodes.at(0).layer.get()); }
  Graph graph;
};
using Any = Only<Layer>;

// "name [2, 3]", parts in parentheses.
std::string in_words(const TensorSpec& spec) {
  std::string s = spec.name + " [";
  for (std::size_t n = 0; n < spec.shape.size(); ++n)
    s += (n > 0 ? ", " : "") + std::to_string(spec.shape[n]);
  s += "]";
  for (const TensorSpec& part : spec.parts) s += " (" + in_words(part) + ")";
  return s;
}

std::vector<std::string> tensors(const Layer& layer) {
  std::vector<std::string> list;
  for (const TensorSpec& spec : layer.tensors()) list.push_back(in_words(spec));
  return list;
}

std::string shape_error(const Graph& graph, const CellShape& input) {
  return error_of([&] { graph.shapes(input); });
}

TEST(AxialAttention, Defaults) {
  const Only<AxialAttention> layer("axial_attention: {axis: row, heads: 4}");
  EXPECT_EQ(layer->dim, 64);
  EXPECT_EQ(layer->axis, Axis::row);
  EXPECT_EQ(layer->heads, 4);
  EXPECT_EQ(layer->head_dim, 16);
  EXPECT_EQ(layer->norm.kind, NormKind::layer);
  EXPECT_EQ(layer->norm.eps, 1e-5);
  EXPECT_FALSE(layer->qkv_bias);
  EXPECT_TRUE(layer->out_bias);
  EXPECT_TRUE(layer->residual);
  EXPECT_FALSE(layer->causal);
  EXPECT_EQ(layer->scale, 0.25);
  EXPECT_FALSE(layer->rope.has_value());
  EXPECT_EQ(layer->describe(), "axial_attention row, 4 heads of 16");
  EXPECT_THAT(tensors(*layer.operator->()),
              ElementsAre("norm.weight [64]", "norm.bias [64]",
                          "qkv.weight [192, 64] (q.weight [64, 64]) (k.weight [64, 64]) (v.weight [64, 64])",
                          "out.weight [64, 64]", "out.bias [64]"));
}

TEST(AxialAttention, EveryOption) {
  const Only<AxialAttention> layer(
      "axial_attention: {axis: column, heads: 3, head_dim: 10, norm: rms, eps: 1e-6, qkv_bias: true, "
      "out_bias: false, "
      "residual: false, scale: 0.5, causal: true, rope: {theta: 500, style: interleaved, dims: 6}}");
  EXPECT_EQ(layer->axis, Axis::column);
  EXPECT_EQ(layer->head_dim, 10);
  EXPECT_EQ(layer->inner(), 30);
  EXPECT_EQ(layer->norm.kind, NormKind::rms);
  EXPECT_EQ(layer->norm.eps, 1e-6);
  EXPECT_TRUE(layer->qkv_bias);
  EXPECT_FALSE(layer->out_bias);
  EXPECT_FALSE(layer->residual);
  EXPECT_TRUE(layer->causal);
  EXPECT_EQ(layer->scale, 0.5);
  ASSERT_TRUE(layer->rope.has_value());
  EXPECT_EQ(layer->rope->theta, 500);
  EXPECT_EQ(layer->rope->style, Rope::Style::interleaved);
  EXPECT_EQ(layer->rope->dims, 6);
  EXPECT_EQ(layer->describe(),
            "axial_attention column, 3 heads of 10, rms norm, eps 1e-06, qkv bias, no out bias, no residual, "
            "causal, "
            "scale 0.5, rope interleaved of 6, theta 500");
  EXPECT_THAT(tensors(*layer.operator->()),
              ElementsAre("norm.weight [64]",
                          "qkv.weight [90, 64] (q.weight [30, 64]) (k.weight [30, 64]) (v.weight [30, 64])",
                          "qkv.bias [90] (q.bias [30]) (k.bias [30]) (v.bias [30])", "out.weight [64, 30]"));
}

TEST(AxialAttention, RopeDefaultsAndNone) {
  const Only<AxialAttention> with("axial_attention: {axis: row, heads: 4, rope: {}}");
  ASSERT_TRUE(with->rope.has_value());
  EXPECT_EQ(with->rope->dims, 16);
  EXPECT_EQ(with->rope->theta, 10000);
  EXPECT_EQ(with->rope->style, Rope::Style::half);
  const Only<AxialAttention> without("axial_attention: {axis: row, heads: 4, rope: none}");
  EXPECT_FALSE(without->rope.has_value());
}

TEST(AxialAttention, OddHeadsNeedHeadDim) {
  const Only<AxialAttention> layer("axial_attention: {axis: row, heads: 5, head_dim: 7}");
  EXPECT_EQ(layer->inner(), 35);
  EXPECT_DOUBLE_EQ(layer->scale, 1 / std::sqrt(7.0));
}

TEST(AxialAttention, WithoutNorm) {
  const Any layer("axial_attention: {axis: row, heads: 4, norm: none, out_bias: false}");
  EXPECT_THAT(tensors(*layer.operator->()), ElementsAre(StartsWith("qkv.weight"), "out.weight [64, 64]"));
  EXPECT_EQ(layer->describe(), "axial_attention row, 4 heads of 16, no norm, no out bias");
}

TEST(AxialAttention, Flops) {  // projections 8 cells D inner, attention 4 L L inner a sequence
  const CellShape grid{3, 5, 64};
  EXPECT_EQ(Any("axial_attention: {axis: row, heads: 4}")->flops(grid),
            8.0 * 15 * 64 * 64 + 3 * 4.0 * 25 * 64);
  EXPECT_EQ(Any("axial_attention: {axis: column, heads: 4}")->flops(grid),
            8.0 * 15 * 64 * 64 + 5 * 4.0 * 9 * 64);
  EXPECT_EQ(Any("axial_attention: {axis: column, heads: 4, head_dim: 2}")->flops(grid),
            8.0 * 15 * 64 * 8 + 5 * 4.0 * 9 * 8);
}

TEST(AxialAttention, CausalCountsAsFull) {
  const CellShape grid{3, 5, 64};
  EXPECT_EQ(Any("axial_attention: {axis: row, heads: 4, causal: true}")->flops(grid),
            Any("axial_attention: {axis: row, heads: 4}")->flops(grid));
}

TEST(FeedForward, Defaults) {
  const Only<FeedForward> layer("feed_forward: {hidden: 100}");
  EXPECT_EQ(layer->activation, Activation::gelu);
  EXPECT_EQ(layer->norm.kind, NormKind::layer);
  EXPECT_EQ(layer->norm.eps, 1e-5);
  EXPECT_TRUE(layer->bias);
  EXPECT_TRUE(layer->residual);
  EXPECT_EQ(layer->describe(), "feed_forward 64 -> 100 -> 64, gelu");
  EXPECT_THAT(tensors(*layer.operator->()),
              ElementsAre("norm.weight [64]", "norm.bias [64]", "up.weight [100, 64]", "up.bias [100]",
                          "down.weight [64, 100]", "down.bias [64]"));
  EXPECT_EQ(layer->flops({2, 3, 64}), 2.0 * 6 * 64 * 100 * 2);
}

TEST(FeedForward, EveryOption) {
  const Only<FeedForward> layer(
      "feed_forward: {hidden: 8, activation: silu, norm: none, bias: false, residual: false}");
  EXPECT_EQ(layer->activation, Activation::silu);
  EXPECT_FALSE(layer->bias);
  EXPECT_FALSE(layer->residual);
  EXPECT_EQ(layer->describe(), "feed_forward 64 -> 8 -> 64, silu, no norm, no bias, no residual");
  EXPECT_THAT(tensors(*layer.operator->()), ElementsAre("up.weight [8, 64]", "down.weight [64, 8]"));
}

TEST(FeedForward, Activations) {
  for (const Activation a : {Activation::gelu, Activation::gelu_tanh, Activation::relu, Activation::silu}) {
    const Only<FeedForward> layer("feed_forward: {hidden: 8, activation: " + std::string(to_string(a)) + "}");
    EXPECT_EQ(layer->activation, a);
  }
}

TEST(NormLayer, Kinds) {
  const Only<NormLayer> layer("norm:");
  EXPECT_EQ(layer->norm.kind, NormKind::layer);
  EXPECT_THAT(tensors(*layer.operator->()), ElementsAre("norm.weight [64]", "norm.bias [64]"));
  EXPECT_EQ(layer->describe(), "norm layer of 64 channels");
  EXPECT_EQ(layer->flops({2, 3, 64}), 0);
  const Only<NormLayer> rms("norm: {kind: rms, eps: 1e-8}");
  EXPECT_EQ(rms->norm.kind, NormKind::rms);
  EXPECT_EQ(rms->norm.eps, 1e-8);
  EXPECT_THAT(tensors(*rms.operator->()), ElementsAre("norm.weight [64]"));
  EXPECT_EQ(rms->describe(), "norm rms of 64 channels, eps 1e-08");
}

TEST(Linear, Tensors) {
  const Any layer("linear: {out: 10}");
  EXPECT_THAT(tensors(*layer.operator->()), ElementsAre("weight [10, 64]", "bias [10]"));
  EXPECT_THAT(tensors(*Any("linear: {out: 10, bias: false}").operator->()), ElementsAre("weight [10, 64]"));
  EXPECT_EQ(layer->output_channels(), 10);
  EXPECT_EQ(layer->output({2, 3, 64}), (CellShape{2, 3, 10}));
  EXPECT_EQ(layer->flops({2, 3, 64}), 2.0 * 6 * 64 * 10);
  EXPECT_EQ(layer->describe(), "linear 64 -> 10");
}

TEST(PatchEmbed, ShapesAndTensors) {
  const Any layer("patch_embed: {patch: 4, channels: 3, dim: 32}", 3);
  EXPECT_THAT(tensors(*layer.operator->()), ElementsAre("weight [32, 48]", "bias [32]"));
  EXPECT_EQ(layer->input_channels(), 3);
  EXPECT_EQ(layer->output_channels(), 32);
  EXPECT_EQ(layer->output({8, 12, 3}), (CellShape{2, 3, 32}));
  EXPECT_EQ(layer->flops({8, 12, 3}), 2.0 * 6 * 48 * 32);
  EXPECT_EQ(layer->describe(), "patch_embed 4 x 4 x 3 -> 32");
  EXPECT_THAT(tensors(*Any("patch_embed: {patch: 4, channels: 3, dim: 32, bias: false}", 3).operator->()),
              ElementsAre("weight [32, 48]"));
}

TEST(PatchEmbed, RefusesPartsOfPatches) {
  const Graph graph = Any("patch_embed: {patch: 4, channels: 3, dim: 32}", 3).graph;
  for (const CellShape& grid : {CellShape{7, 8, 3}, CellShape{8, 9, 3}, CellShape{1, 1, 3}}) {
    EXPECT_THAT(shape_error(graph, grid),
                AllOf(StartsWith("model.yaml:3: patch_embed (layers[0]): "), HasSubstr("multiples of 4")));
  }
}

TEST(PatchUnembed, ShapesAndTensors) {
  const Any layer("patch_unembed: {patch: 4, channels: 3}");
  EXPECT_THAT(tensors(*layer.operator->()), ElementsAre("weight [48, 64]", "bias [48]"));
  EXPECT_EQ(layer->input_channels(), 64);
  EXPECT_EQ(layer->output_channels(), 3);
  EXPECT_EQ(layer->output({2, 3, 64}), (CellShape{8, 12, 3}));
  EXPECT_EQ(layer->flops({2, 3, 64}), 2.0 * 6 * 48 * 64);
  EXPECT_EQ(layer->describe(), "patch_unembed 64 -> 4 x 4 x 3");
}

TEST(PositionEmbedding, ShapesAndTensors) {
  const Any layer("position_embedding: {rows: 4, columns: 9}");
  EXPECT_THAT(tensors(*layer.operator->()), ElementsAre("rows [4, 64]", "columns [9, 64]"));
  EXPECT_EQ(layer->output({4, 9, 64}), (CellShape{4, 9, 64}));
  EXPECT_EQ(layer->output({1, 1, 64}), (CellShape{1, 1, 64}));
  EXPECT_EQ(layer->flops({4, 9, 64}), 0);
  EXPECT_EQ(layer->describe(), "position_embedding up to 4 x 9");
}

TEST(PositionEmbedding, RefusesLargerGrids) {
  const Graph graph = Any("position_embedding: {rows: 4, columns: 9}").graph;
  EXPECT_THAT(shape_error(graph, {5, 9, 64}),
              AllOf(StartsWith("model.yaml:3: "), HasSubstr("larger than the tables")));
  EXPECT_THAT(shape_error(graph, {4, 10, 64}), HasSubstr("4 x 10"));
}

TEST(Shapes, FollowEveryLayer) {
  const Graph graph =
      parse(model("  - patch_embed: {patch: 2, channels: 3, dim: 8}\n"
                  "  - axial_attention: {axis: row, heads: 2}\n"
                  "  - linear: {out: 5}\n"
                  "  - norm:\n"
                  "  - feed_forward: {hidden: 7}\n"
                  "  - position_embedding: {rows: 9, columns: 9}\n"
                  "  - patch_unembed: {patch: 3, channels: 1}\n",
                  3));
  const CellShape wide{3, 2, 8}, narrow{3, 2, 5};
  EXPECT_THAT(graph.shapes({6, 4, 3}),
              ElementsAre(wide, wide, narrow, narrow, narrow, narrow, CellShape{9, 6, 1}));
}

TEST(Shapes, RefuseBadInputs) {
  const Graph graph = Any("norm:").graph;
  EXPECT_EQ(graph.shapes({1, 1, 64}).size(), 1u);
  EXPECT_EQ(shape_error(graph, {1, 1, 32}),
            "model.yaml: the model takes grids with 64 channels, got 1 x 1 with 32 channels");
  EXPECT_THAT(shape_error(graph, {0, 4, 64}), HasSubstr("at least 1"));
  EXPECT_THAT(shape_error(graph, {4, -1, 64}), HasSubstr("at least 1"));
}

TEST(Shapes, RefuseWhatOverflows) {
  const std::int64_t side = std::int64_t{1} << 28;  // 2^28 * 2^28 cells of 64 channels of 8 bytes: 2^65
  EXPECT_THAT(shape_error(Any("norm:").graph, {side, side, 64}), HasSubstr("too large for 64-bit sizes"));
  EXPECT_THAT(
      shape_error(Any("linear: {out: 1000000}", 1).graph, {side, side / 8, 1}),
      AllOf(StartsWith("model.yaml:3: linear (layers[0]): "), HasSubstr("too large for 64-bit sizes")));
  EXPECT_THAT(
      shape_error(Any("patch_unembed: {patch: 1024, channels: 1}", 1).graph, {std::int64_t{1} << 58, 1, 1}),
      AllOf(StartsWith("model.yaml:3: patch_unembed (layers[0]): "), HasSubstr("too large")));
  // The largest grid of the contract: 1 x 16384 x 16384 x 128.
  EXPECT_EQ(Any("norm:", 128).graph.shapes({16384, 16384, 128})[0].cells(), std::int64_t{1} << 28);
}

TEST(Registry, EveryTypeRefusesUnknownKeys) {  // and so none forgets to declare its own
  EXPECT_EQ(layer_types().size(), 7u);
  for (const LayerType& type : layer_types()) {
    EXPECT_THAT(parse_error(model("  - " + std::string(type.name) + ": {no_such_key_at_all: 1}\n")),
                AllOf(StartsWith("model.yaml:3: " + std::string(type.name) + ": "), HasSubstr("unknown key"),
                      HasSubstr("tensors)")));
  }
}

TEST(Registry, NamesAreThoseOfTheLayers) {
  for (const char* layer :
       {"axial_attention: {axis: row, heads: 1}", "feed_forward: {hidden: 1}", "norm: {}", "linear: {out: 1}",
        "patch_embed: {patch: 1, channels: 64, dim: 1}", "patch_unembed: {patch: 1, channels: 1}",
        "position_embedding: {rows: 1, columns: 1}"}) {
    EXPECT_THAT(layer, StartsWith(std::string(Any(layer)->type()) + ":"));
  }
}

}  // namespace
}  // namespace warpweave::graph
