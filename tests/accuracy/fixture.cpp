#include "accuracy/fixture.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "weights/random.h"

namespace warpweave::accuracy {
namespace {

std::filesystem::path folder() { return WARPWEAVE_ACCURACY_DIR; }

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  return nlohmann::json::parse(file);
}

Case parse_case(const nlohmann::json& j) {
  Case c;
  c.name = j.at("name");
  const std::vector<std::int64_t> shape = j.at("shape"), output = j.at("output_shape");
  c.shape = {shape.at(0), shape.at(1), shape.at(2)};
  c.output = {output.at(0), output.at(1), output.at(2), output.at(3)};
  c.seed = j.at("seed");
  const std::filesystem::path fixtures = folder() / "fixtures";
  c.config = fixtures / (c.name + ".yaml");
  c.expected = fixtures / (c.name + ".safetensors");
  if (j.at("weights") != "generated") c.weights = fixtures / j.at("weights").get<std::string>();
  c.input_mean = j.at("input").at("mean");
  c.input_scale = j.at("input").at("scale");
  if (const auto& mask = j.at("mask"); !mask.is_null()) {
    c.mask = MaskRule{mask.at("threshold"), mask.at("empty_rows"), mask.at("empty_columns")};
  }
  c.norm = j.at("norm");
  if (!j.at("limit").is_null()) c.fp32_limit = j.at("limit").get<double>();
  c.narrow = j.at("narrow");
  return c;
}

std::vector<double> load_doubles(const std::filesystem::path& path, const std::string& name) {
  const Tensor tensor = load_tensor(path, name);
  const auto values = tensor.values<double>();
  return {values.begin(), values.end()};
}

double element(const Tensor& y, std::int64_t i) {
  const auto at = static_cast<std::size_t>(i);
  return y.dtype() == DType::f64 ? y.values<double>()[at] : static_cast<double>(y.values<float>()[at]);
}

}  // namespace

std::vector<Case> load_cases() {
  const nlohmann::json list = read_json(folder() / "fixtures" / "cases.json");
  const nlohmann::json torch = read_json(folder() / "torch_errors.json");
  std::vector<Case> cases;
  for (const auto& j : list.at("cases")) {
    Case c = parse_case(j);
    const auto errors = torch.at("errors").find(c.name);
    if (errors != torch.at("errors").end()) c.torch_errors = errors->get<std::map<std::string, double>>();
    cases.push_back(std::move(c));
  }
  return cases;
}

Model load_model(const Case& c) {
  return c.weights.empty() ? Model::random(c.config, c.seed) : Model::load(c.config, c.weights);
}

Tensor make_input(const Case& c, std::int64_t channels) {
  Tensor x(DType::f32, {c.shape.batch, c.shape.rows, c.shape.columns, channels});
  const auto values = x.values<float>();
  weights::fill_normal(values, c.seed, "input");
  for (float& v : values) v = static_cast<float>(c.input_mean + c.input_scale * static_cast<double>(v));
  return x;
}

std::optional<Tensor> make_mask(const Case& c) {
  if (!c.mask) return std::nullopt;
  const auto [batch, rows, columns] = c.shape;
  std::vector<float> normals(static_cast<std::size_t>(batch * rows * columns));
  weights::fill_normal(normals, c.seed, "mask");
  Tensor mask(DType::u8, {batch, rows, columns});
  const auto valid = mask.values<std::uint8_t>();
  const auto names = [](const std::vector<std::int64_t>& list, std::int64_t i) {
    return std::find(list.begin(), list.end(), i) != list.end();
  };
  for (std::size_t k = 0; k < normals.size(); ++k) {
    const auto cell = static_cast<std::int64_t>(k);
    const bool emptied =
        names(c.mask->empty_rows, cell / columns % rows) || names(c.mask->empty_columns, cell % columns);
    valid[k] = !emptied && normals[k] > static_cast<float>(c.mask->threshold);
  }
  return mask;
}

Expected load_expected(const Case& c) {
  Expected expected;
  for (const double p : load_doubles(c.expected, "positions")) {
    expected.positions.push_back(static_cast<std::int64_t>(p));
  }
  expected.values = load_doubles(c.expected, "values");
  expected.cell_sums = load_doubles(c.expected, "cell_sums");
  return expected;
}

Errors compare(const Case& c, const Expected& expected, const Tensor& y) {
  double values = 0;
  for (std::size_t k = 0; k < expected.positions.size(); ++k) {
    const double difference = element(y, expected.positions[k]) - expected.values[k];
    values += difference * difference;
  }
  values *= static_cast<double>(y.elements()) / static_cast<double>(expected.positions.size());

  double cells = 0;
  const std::int64_t channels = c.output.channels;
  for (std::int64_t cell = 0; cell < c.output.cells(); ++cell) {
    double sum = 0;
    for (std::int64_t d = 0; d < channels; ++d) sum += element(y, cell * channels + d);
    const double difference = sum - expected.cell_sums[static_cast<std::size_t>(cell)];
    cells += difference * difference / static_cast<double>(channels);
  }
  return {std::sqrt(values) / c.norm, std::sqrt(cells) / c.norm};
}

double limit(const Case& c, Precision precision) {
  if (precision == Precision::fp32 && c.fp32_limit) return *c.fp32_limit;
  const std::map<Precision, double> contract = {{Precision::fp64, 1e-12},
                                                {Precision::fp32, 1e-6},
                                                {Precision::tf32, 2.5e-4},
                                                {Precision::fp16, 1e-3},
                                                {Precision::bf16, 8e-3}};
  const double allowed = contract.at(precision);
  const auto torch = c.torch_errors.find(std::string(to_string(precision)));
  return torch == c.torch_errors.end() ? allowed : std::max(allowed, 1.1 * torch->second);
}

}  // namespace warpweave::accuracy
