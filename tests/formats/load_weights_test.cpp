#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "formats/malformed_safetensors.h"
#include "formats/support.h"
#include "warpweave/io.h"
#include "weights/load.h"
#include "weights/random.h"

namespace warpweave::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using Tensors = std::map<std::string, Tensor>;

graph::Graph attention(const std::string& options) {
  return graph::parse_graph(
      "name: m\ninput: {dim: 4}\nlayers:\n  - axial_attention: {axis: row, heads: 2, " + options + "}\n",
      "m.yaml");
}

Tensor numbered(std::vector<std::int64_t> shape, const std::string& key) {
  Tensor tensor(DType::f32, std::move(shape));
  weights::fill_normal(tensor.values<float>(), 1, key);
  return tensor;
}

// What attention() takes, by canonical name.
Tensors whole(const std::string& prefix) {
  return {{prefix + "norm.weight", numbered({4}, "nw")},
          {prefix + "norm.bias", numbered({4}, "nb")},
          {prefix + "qkv.weight", numbered({12, 4}, "w")},
          {prefix + "out.weight", numbered({4, 4}, "o")},
          {prefix + "out.bias", numbered({4}, "ob")}};
}

class LoadWeights : public ::testing::Test {
 protected:
  std::vector<weights::LayerWeights> load(const graph::Graph& graph, const Tensors& tensors,
                                          bool allow_unused = false) {
    save_safetensors(path_, tensors);
    return weights::load_weights(graph, path_.string(), allow_unused);
  }
  std::string error(const graph::Graph& graph, const Tensors& tensors, bool allow_unused = false) {
    const std::string message = error_of([&] { load(graph, tensors, allow_unused); });
    EXPECT_THAT(message, StartsWith(path_.string() + ": "));
    return message;
  }
  static void expect_equal(const Tensor& a, const Tensor& b) {
    EXPECT_EQ(a.shape(), b.shape());
    ASSERT_EQ(a.bytes(), b.bytes());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0);
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "w.safetensors";
};

TEST_F(LoadWeights, ByTemplate) {
  const auto all = load(attention("tensors: 'row_{name}'"), whole("row_"));
  ASSERT_EQ(all.size(), 1u);
  ASSERT_EQ(all[0].all().size(), 5u);
  for (const auto& [name, tensor] : whole("")) {
    SCOPED_TRACE(name);
    expect_equal(all[0].all().at(name), tensor);
  }
  EXPECT_EQ(all[0].find("qkv.bias"), nullptr);
}

TEST_F(LoadWeights, ByMap) {
  Tensors tensors;
  tensors["A"] = numbered({4}, "nw");
  tensors["B"] = numbered({4}, "nb");
  tensors["C"] = numbered({12, 4}, "w");
  tensors["D"] = numbered({4, 4}, "o");
  const auto graph =
      attention("out_bias: false, tensors: {norm.weight: A, norm.bias: B, qkv.weight: C, out.weight: D}");
  const auto all = load(graph, tensors);
  expect_equal(all[0].all().at("qkv.weight"), tensors["C"]);
  expect_equal(all[0].all().at("norm.bias"), tensors["B"]);
  tensors.erase("C");
  EXPECT_THAT(error(graph, tensors), HasSubstr("missing 'C' [12, 4], which layers[0] takes"));
}

// q, k and v apart, in an order of their own in the file and in types of their own.
TEST_F(LoadWeights, PacksSeparateQueriesKeysAndValues) {
  Tensors parts = whole("");
  const Tensor qkv = numbered({12, 4}, "w");
  parts.erase("qkv.weight");
  const char* const names[] = {"q", "k", "v"};
  Tensors biases;
  for (std::size_t i = 0; i < 3; ++i) {
    parts[names[i] + std::string(".weight")] = Tensor::from({4, 4}, qkv.values<float>().subspan(16 * i, 16));
    biases[names[i] + std::string(".bias")] = numbered({4}, names[i]);
  }
  const auto by_template = load(attention("tensors: '{name}'"), parts);
  expect_equal(by_template[0].all().at("qkv.weight"), qkv);

  parts.insert(biases.begin(), biases.end());
  parts["k.weight"] = parts["k.weight"].to(DType::f64);
  const auto graph = attention(
      "qkv_bias: true, tensors: {norm.weight: norm.weight, norm.bias: norm.bias, v.weight: v.weight, "
      "q.weight: q.weight, k.weight: k.weight, q.bias: q.bias, k.bias: k.bias, v.bias: v.bias, "
      "out.weight: out.weight, out.bias: out.bias}");
  const auto by_map = load(graph, parts);
  expect_equal(by_map[0].all().at("qkv.weight"), qkv);
  ASSERT_EQ(by_map[0].all().at("qkv.bias").shape(), (std::vector<std::int64_t>{12}));
  EXPECT_EQ(by_map[0].find("qkv.bias")[11], biases["v.bias"].values<float>()[3]);

  parts.erase("k.weight");
  EXPECT_THAT(error(graph, parts), HasSubstr("missing 'k.weight' [4, 4], which layers[0] takes"));
  EXPECT_THAT(error(attention("tensors: '{name}'"), parts), HasSubstr("missing 'k.weight' [4, 4]"));
}

TEST_F(LoadWeights, APackedTensorIsPreferredToItsParts) {
  Tensors tensors = whole("");
  tensors["q.weight"] = numbered({4, 4}, "other");
  const auto graph = attention("tensors: '{name}'");
  EXPECT_THAT(error(graph, tensors), HasSubstr("unused 'q.weight' [4, 4]"));
  expect_equal(load(graph, tensors, true)[0].all().at("qkv.weight"), tensors["qkv.weight"]);
}

TEST_F(LoadWeights, ConvertsOtherTypesExactly) {
  const auto graph = attention("tensors: '{name}'");
  for (const DType type : {DType::f64, DType::f16, DType::bf16}) {
    Tensors tensors = whole("");
    for (auto& [name, tensor] : tensors) tensor = tensor.to(type);
    const auto all = load(graph, tensors);
    for (const auto& [name, tensor] : tensors) expect_equal(all[0].all().at(name), tensor.to(DType::f32));
  }
}

TEST_F(LoadWeights, OneTensorMayServeTwoLayers) {
  const auto graph = graph::parse_graph(
      "name: m\ninput: {dim: 4}\nlayers:\n  - repeat: {count: 2, layers: [{norm: {tensors: "
      "'shared.{name}'}}]}\n",
      "m.yaml");
  const auto all =
      load(graph, {{"shared.norm.weight", numbered({4}, "w")}, {"shared.norm.bias", numbered({4}, "b")}});
  ASSERT_EQ(all.size(), 2u);
  expect_equal(all[0].all().at("norm.weight"), all[1].all().at("norm.weight"));
}

TEST_F(LoadWeights, TellsEverythingThatDoesNotFitAtOnce) {
  Tensors tensors = whole("row_");
  tensors.erase("row_qkv.weight");
  tensors.erase("row_norm.bias");
  tensors["row_norm_bias"] = numbered({4}, "x");
  tensors["row_out.weight"] = numbered({4, 5}, "x");
  Tensor mask(DType::u8, {4});
  std::memset(mask.data(), 1, 4);
  tensors["row_out.bias"] = mask;
  tensors["extra\n"] = numbered({2, 3}, "x");
  const std::string message = error(attention("tensors: 'row_{name}'"), tensors);
  EXPECT_THAT(message, HasSubstr("w.safetensors: does not fit m.yaml: "));
  EXPECT_THAT(message,
              HasSubstr("missing 'row_qkv.weight' [12, 4] or 'row_q.weight', 'row_k.weight', 'row_v.weight', "
                        "which layers[0] takes"));
  EXPECT_THAT(message,
              HasSubstr("missing 'row_norm.bias' [4], which layers[0] takes, did you mean 'row_norm_bias'?"));
  EXPECT_THAT(message, HasSubstr("'row_out.weight' has shape [4, 5], layers[0] expects [4, 4]"));
  EXPECT_THAT(message, HasSubstr("'row_out.bias' has dtype U8, expected F64, F32, F16 or BF16"));
  EXPECT_THAT(message, HasSubstr("unused 'row_norm_bias' [4]"));
  EXPECT_THAT(message, HasSubstr("unused 'extra\\x0a' [2, 3]"));
  EXPECT_THAT(message, HasSubstr("--allow-unused"));
  EXPECT_THAT(error(attention("tensors: 'row_{name}'"), tensors, true), Not(HasSubstr("unused")));
}

TEST_F(LoadWeights, ALongListIsCutWithACount) {
  Tensors tensors = whole("");
  for (int i = 0; i < 100; ++i) tensors["extra" + std::to_string(i)] = numbered({1}, "x");
  const std::string message = error(attention("tensors: '{name}'"), tensors);
  EXPECT_THAT(message, AllOf(HasSubstr("unused 'extra0'"), HasSubstr("; ... and 80 more")));
  EXPECT_EQ(load(attention("tensors: '{name}'"), tensors, true).size(), 1u);
}

TEST_F(LoadWeights, AWrongRankIsAWrongShape) {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{48}, {12, 4, 1}, {4, 12}, {0, 4}, {}}) {
    Tensors tensors = whole("");
    tensors["qkv.weight"] = numbered(shape, "x");
    EXPECT_THAT(error(attention("tensors: '{name}'"), tensors), HasSubstr("layers[0] expects [12, 4]"));
  }
}

TEST_F(LoadWeights, NonFiniteValuesAreNamed) {
  const auto graph = attention("tensors: '{name}'");
  const float bad[] = {std::nanf(""), HUGE_VALF, -HUGE_VALF};
  for (const DType type : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const float value : bad) {
      Tensors tensors = whole("");
      tensors["qkv.weight"].values<float>()[4 * 7 + 2] = value;
      tensors["qkv.weight"].values<float>()[4 * 11 + 3] = value;
      tensors["qkv.weight"] = tensors["qkv.weight"].to(type);
      tensors["out.bias"].values<float>()[0] = value;
      EXPECT_THAT(error(graph, tensors),
                  AllOf(HasSubstr("weights must be finite: "),
                        HasSubstr("'qkv.weight' has 2 NaN or infinite values, the first at [7, 2]"),
                        HasSubstr("'out.bias' has 1 NaN or infinite value, the first at [0]")));
    }
  }
}

TEST_F(LoadWeights, ADoubleBeyondFloatIsNotFinite) {
  Tensors tensors = whole("");
  tensors["out.weight"] = tensors["out.weight"].to(DType::f64);
  tensors["out.weight"].values<double>()[5] = -1e300;
  EXPECT_THAT(error(attention("tensors: '{name}'"), tensors),
              HasSubstr("'out.weight' has a value beyond float32, -1e+300 at [1, 1]"));
  tensors["out.weight"].values<double>()[5] = std::numeric_limits<float>::max();
  EXPECT_EQ(load(attention("tensors: '{name}'"), tensors).size(), 1u);
}

TEST_F(LoadWeights, AnUnusedTensorMayHoldAnything) {
  Tensors tensors = whole("");
  tensors["other"] = Tensor::from({1}, std::vector<float>{HUGE_VALF});
  EXPECT_EQ(load(attention("tensors: '{name}'"), tensors, true).size(), 1u);
}

TEST_F(LoadWeights, UnalignedTensorsAreRead) {
  const auto graph = graph::parse_graph(
      "name: m\ninput: {dim: 2}\nlayers: [{norm: {kind: rms, tensors: '{name}'}}]\n", "m.yaml");
  const double values[] = {0.5, -3};
  const std::string data(reinterpret_cast<const char*>(values), sizeof values);
  std::string header = R"({"pad":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("norm.weight":{"dtype":"F64","shape":[2],"data_offsets":[1,17]}})";
  write_bytes(path_, safetensors_bytes(header, "x" + data));
  const auto all = weights::load_weights(graph, path_.string(), true);
  EXPECT_EQ(all[0].find("norm.weight")[1], -3.0f);
}

TEST_F(LoadWeights, EveryMalformedFileIsRefusedHereToo) {
  for (const MalformedFile& file : malformed_safetensors()) {
    SCOPED_TRACE(file.kind);
    write_bytes(path_, file.bytes);
    const auto load = [&] { weights::load_weights(attention("tensors: '{name}'"), path_.string(), true); };
    EXPECT_THAT(error_of(load), AllOf(StartsWith(path_.string() + ": "), HasSubstr(file.phrase)));
  }
}

}  // namespace
}  // namespace warpweave::testing
