// Faults that hand-written axial-attention kernels have had in practice, each as a test that would catch it:
// the expected values are computed here, and each test also checks that the fault would have been seen.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "properties/problem.h"

namespace warpweave::properties {
namespace {

class KnownFaults : public testing::TestWithParam<std::string> {
 protected:
  KnownFaults() { std::filesystem::create_directories(folder_); }
  ~KnownFaults() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Engine engine(const Model& model) const { return cpu_engine(model, GetParam()); }

  // A model of one layer, "type: {...}", with the weights given by their canonical names.
  Model load(std::int64_t dim, std::string layer, const std::map<std::string, Tensor>& weights) const {
    layer.insert(layer.size() - 1, std::string(layer.ends_with("{}") ? "" : ", ") + "tensors: \"{name}\"");
    std::ofstream(folder_ / "model.yaml")
        << "name: test\ninput: {dim: " << dim << "}\nlayers:\n  - " << layer << "\n";
    save_safetensors(folder_ / "weights.safetensors", weights);
    return Model::load(folder_ / "model.yaml", folder_ / "weights.safetensors");
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("warpweave-known-faults-" + std::to_string(getpid()));
};
INSTANTIATE_TEST_SUITE_P(Cpu, KnownFaults, testing::ValuesIn(plans()),
                         [](const auto& test) { return test.param; });

std::vector<double> doubles(const Tensor& t) {
  const Tensor wide = t.to(DType::f64);
  return {wide.values<double>().begin(), wide.values<double>().end()};
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    apart += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(apart / size);
}

Tensor filled(std::vector<std::int64_t> shape, float value) {
  Tensor t(DType::f32, std::move(shape));
  for (float& v : t.values<float>()) v = value;
  return t;
}

// (x - mean) / sqrt(variance + eps) over groups of `group` channels, in double.
std::vector<double> normalised(const std::vector<double>& x, std::size_t group) {
  std::vector<double> y(x.size());
  for (std::size_t first = 0; first < x.size(); first += group) {
    double mean = 0, variance = 0;
    for (std::size_t k = 0; k < group; ++k) mean += x[first + k] / static_cast<double>(group);
    for (std::size_t k = 0; k < group; ++k) {
      variance += (x[first + k] - mean) * (x[first + k] - mean) / static_cast<double>(group);
    }
    for (std::size_t k = 0; k < group; ++k) y[first + k] = (x[first + k] - mean) / std::sqrt(variance + 1e-5);
  }
  return y;
}

// Warp shuffles that reduce only within 32 lanes.
TEST_P(KnownFaults, AReductionThatStopsAtAWarp) {
  for (const std::int64_t dim : {32, 64, 96, 128, 1024}) {
    const Model model =
        load(dim, "norm: {}", {{"norm.weight", filled({dim}, 1)}, {"norm.bias", filled({dim}, 0)}});
    const Tensor x = random_grid({1, 2, 3}, dim, 1);
    const std::vector<double> y = doubles(run(engine(model), x));
    EXPECT_LE(distance(y, normalised(doubles(x), static_cast<std::size_t>(dim))), 1e-6) << dim;
    if (dim > 32) {
      EXPECT_GT(distance(y, normalised(doubles(x), 32)), 1e-2) << dim;
    }
  }
  // Softmax: equal scores average the values of the whole sequence, however long it is.
  const std::int64_t dim = 2;
  Tensor qkv = filled({3 * dim, dim}, 0);  // q = k = 0, v = x
  qkv.values<float>()[8] = qkv.values<float>()[11] = 1;
  Tensor out = filled({dim, dim}, 0);
  out.values<float>()[0] = out.values<float>()[3] = 1;
  const Model model =
      load(dim, "axial_attention: {axis: row, heads: 1, norm: none, residual: false, out_bias: false}",
           {{"qkv.weight", qkv}, {"out.weight", out}});
  for (const std::int64_t length : {31, 32, 33, 100, 128, 129, 500}) {
    const Tensor x = random_grid({1, 1, length}, dim, 2);
    double mean = 0;
    for (std::int64_t j = 0; j < length; ++j)
      mean += x.values<float>()[static_cast<std::size_t>(j * dim)] / length;
    const Tensor y = run(engine(model), x);
    for (std::int64_t j = 0; j < length; ++j) {
      EXPECT_NEAR(y.values<float>()[static_cast<std::size_t>(j * dim)], mean, 1e-6) << length;
    }
  }
}

// Square weights whose transpose is another matrix.
TEST_P(KnownFaults, WeightsPassedTransposed) {
  const std::size_t n = 24;
  Tensor weight = filled({24, 24}, 0);
  const Tensor random = random_grid({1, 24, 24}, 1, 3);
  std::copy_n(random.values<float>().data(), n * n, weight.values<float>().data());
  const Model linear = load(24, "linear: {out: 24, bias: false}", {{"weight", weight}});
  const Tensor x = random_grid({1, 2, 3}, 24, 4);
  const std::vector<double> in = doubles(x), w = doubles(weight);
  std::vector<double> right(in.size(), 0), transposed(in.size(), 0);
  for (std::size_t cell = 0; cell < in.size() / n; ++cell)
    for (std::size_t o = 0; o < n; ++o)
      for (std::size_t i = 0; i < n; ++i) {
        right[cell * n + o] += in[cell * n + i] * w[o * n + i];
        transposed[cell * n + o] += in[cell * n + i] * w[i * n + o];
      }
  const std::vector<double> y = doubles(run(engine(linear), x));
  EXPECT_LE(distance(y, right), 1e-6);
  EXPECT_GT(distance(y, transposed), 0.1);

  // The same of attention's two: one key, so that y = Wout Wv x.
  Tensor qkv = filled({72, 24}, 0);
  std::copy_n(weight.values<float>().data(), n * n, qkv.values<float>().data() + 2 * n * n);
  Tensor out = filled({24, 24}, 0);  // moves channel i to i + 1
  for (std::size_t i = 0; i < n; ++i) out.values<float>()[(i + 1) % n * n + i] = 1;
  const Model attention =
      load(24, "axial_attention: {axis: column, heads: 2, norm: none, residual: false, out_bias: false}",
           {{"qkv.weight", qkv}, {"out.weight", out}});
  const Tensor one_row = random_grid({1, 1, 6}, 24, 4);  // columns of length 1, the same numbers as x
  const std::vector<double> z = doubles(run(engine(attention), one_row));
  for (std::size_t cell = 0; cell < 6; ++cell)
    for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(z[cell * n + (i + 1) % n], right[cell * n + i], 1e-4);
}

TEST_P(KnownFaults, OutputBiasDropped) {
  Tensor bias = filled({8}, 0);
  for (std::size_t d = 0; d < 8; ++d) bias.values<float>()[d] = 0.5f * static_cast<float>(d + 1);
  const Model model = load(8, "axial_attention: {axis: row, heads: 2}",
                           {{"norm.weight", filled({8}, 1)},
                            {"norm.bias", filled({8}, 0)},
                            {"qkv.weight", filled({24, 8}, 0.25f)},
                            {"out.weight", filled({8, 8}, 0)},
                            {"out.bias", bias}});
  const Tensor x = random_grid({2, 3, 5}, 8, 5);
  const Tensor y = run(engine(model), x);
  for (std::size_t k = 0; k < x.values<float>().size(); ++k) {
    ASSERT_EQ(y.values<float>()[k], x.values<float>()[k] + bias.values<float>()[k % 8]);
  }
}

// Grids whose tiles outgrow any fixed buffer: right, or an error, never a wrong answer. The CPU must be
// right.
TEST_P(KnownFaults, LargeSequencesAndChannels) {
  struct Large {
    std::int64_t dim, heads;
    Shape shape;
  };
  for (const auto& [dim, heads, shape] : {Large{1024, 8, {1, 2, 5}}, Large{8, 1, {1, 1, 1500}},
                                          Large{8, 1, {1, 1500, 1}}, Large{256, 1, {1, 9, 70}}}) {
    const Model model = make_block(dim, heads);
    const Tensor x = random_grid(shape, dim, 6);
    const Tensor truth = run(cpu_engine(model, "reference", Precision::fp64), x, nullptr, DType::f64);
    EXPECT_LE(difference(run(engine(model), x), truth), 1e-6) << dim << " channels";
  }
}

// Work that is put on another stream than the caller's. A CPU has none, and says so.
TEST_P(KnownFaults, AStreamThatIsIgnored) {
  const Engine e = engine(make_block());
  Session session = e.prepare({1, 2, 2});
  const Tensor x = random_grid({1, 2, 2}, 16, 7);
  Tensor y = x;
  int stream = 0;
  EXPECT_THROW(session.run(view(x), view(y), {.stream = &stream}), Error);
}

TEST_P(KnownFaults, OneShapeOnly) {
  for (const Shape& shape : {Shape{32, 64, 4}, Shape{1, 64, 4}, Shape{3, 63, 5}, Shape{2, 4, 64},
                             Shape{1, 65, 1}, Shape{5, 1, 7}, Shape{1, 48, 48}}) {
    for (const std::int64_t dim : {6, 16, 20, 64}) {
      const Model model = make_block(dim, 2);
      const Tensor x = random_grid(shape, dim, 8);
      const Tensor truth = run(cpu_engine(model, "reference", Precision::fp64), x, nullptr, DType::f64);
      EXPECT_LE(difference(run(engine(model), x), truth), 1e-6)
          << dim << " channels on " << shape.batch << " x " << shape.rows << " x " << shape.columns;
    }
  }
}

// float32 E[x^2] - E[x]^2 at a mean of 1e4 has no correct digit of a variance of 1.
TEST_P(KnownFaults, VarianceAsADifferenceOfSquares) {
  const std::int64_t dim = 64;
  const Model model =
      load(dim, "norm: {}", {{"norm.weight", filled({dim}, 1)}, {"norm.bias", filled({dim}, 0)}});
  Tensor x = random_grid({1, 3, 5}, dim, 9);
  for (float& v : x.values<float>()) v += 1e4f;
  const std::vector<double> right = normalised(doubles(x), 64);
  EXPECT_LE(distance(doubles(run(engine(model), x)), right), 1e-5);

  std::vector<double> faulty;
  for (std::size_t first = 0; first < x.values<float>().size(); first += 64) {
    float sum = 0, squares = 0;
    for (const float v : x.values<float>().subspan(first, 64)) sum += v, squares += v * v;
    const float mean = sum / 64, variance = std::max(squares / 64 - mean * mean, 0.0f);
    for (const float v : x.values<float>().subspan(first, 64)) {
      faulty.push_back(static_cast<double>((v - mean) / std::sqrt(variance + 1e-5f)));
    }
  }
  EXPECT_GT(distance(faulty, right), 1e-2);
}

}  // namespace
}  // namespace warpweave::properties
