// Every case of tests/reference/cases.py on every plan of the CPU in every precision, against saved float64
// results. The last thing printed is the table of errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "accuracy/fixture.h"

namespace warpweave::accuracy {
namespace {

struct Variant {
  std::string plan;
  Precision precision;
};

const std::vector<Variant>& variants() {
  static const std::vector<Variant> list = {
      {"reference", Precision::fp64}, {"reference", Precision::fp32}, {"cpu_fused", Precision::fp32},
      {"reference", Precision::bf16}, {"cpu_fused", Precision::bf16}, {"reference", Precision::fp16},
      {"cpu_fused", Precision::fp16},
  };
  return list;
}

std::string label(const Variant& v) { return v.plan + "_" + std::string(to_string(v.precision)); }

const std::vector<Case>& cases() {
  static const std::vector<Case> list = load_cases();
  return list;
}

// What was measured, for the table: case -> variant -> error.
std::map<std::string, std::map<std::string, double>>& results() {
  static std::map<std::string, std::map<std::string, double>> map;
  return map;
}

class Table : public testing::Environment {
 public:
  void TearDown() override {
    if (results().empty()) return;
    std::printf("\n%-26s", "error relative to norm");
    for (const Variant& v : variants()) std::printf(" %14s", label(v).c_str());
    std::map<std::string, std::pair<double, std::string>> worst;
    for (const Case& c : cases()) {
      const auto row = results().find(c.name);
      if (row == results().end()) continue;
      std::printf("\n%-26s", c.name.c_str());
      for (const Variant& v : variants()) {
        const auto cell = row->second.find(label(v));
        if (cell == row->second.end()) {
          std::printf(" %14s", "-");
          continue;
        }
        std::printf(" %14.2e", cell->second);
        worst[label(v)] = std::max(worst[label(v)], std::pair(cell->second, c.name));
      }
    }
    std::printf("\n");
    for (const auto& [name, at] : worst) {
      std::printf("worst of %-16s %9.2e  %s\n", name.c_str(), at.first, at.second.c_str());
    }
  }
};

struct Problem {
  Case c;
  Variant variant;
};
void PrintTo(const Problem& p, std::ostream* out) { *out << p.c.name << " " << label(p.variant); }

std::vector<Problem> problems() {
  std::vector<Problem> list;
  for (const Case& c : cases()) {
    for (const Variant& v : variants()) {
      const bool wide = v.precision == Precision::fp32 || v.precision == Precision::fp64;
      if (wide || c.narrow) list.push_back({c, v});
    }
  }
  return list;
}

class Accuracy : public testing::TestWithParam<Problem> {};

TEST_P(Accuracy, IsWithinTheLimit) {
  const auto& [c, variant] = GetParam();
  const Engine engine(load_model(c),
                      {.device = Device::cpu(), .precision = variant.precision, .plan = variant.plan});
  Session session = engine.prepare(c.shape);
  ASSERT_EQ(session.output_shape(), c.output);

  const DType type = variant.precision == Precision::fp64 ? DType::f64 : DType::f32;
  const Tensor x = make_input(c, engine.model().input_channels()).to(type);
  const std::optional<Tensor> mask = make_mask(c);
  Tensor y(type, {c.output.batch, c.output.rows, c.output.columns, c.output.channels});
  std::memset(y.data(), 0xff, y.bytes());  // NaN: an element that is not written shows
  session.run(view(x), view(y), {.mask = mask ? mask_view(*mask) : MaskView{}});

  const Errors errors = compare(c, load_expected(c), y);
  results()[c.name][label(variant)] = errors.values;
  const double allowed = limit(c, variant.precision);
  EXPECT_LE(errors.values, allowed) << session.explain();
  // The cells' sums only have to show that no cell is wrong; errors within a cell are not quite independent.
  EXPECT_LE(errors.cells, 3 * allowed) << session.explain();
}

INSTANTIATE_TEST_SUITE_P(Cpu, Accuracy, testing::ValuesIn(problems()), [](const auto& test) {
  return test.param.c.name + "_" + label(test.param.variant);
});

// The comparison itself must be able to fail: a shift of one cell, and of one stored element.
TEST(Compare, SeesOneWrongCell) {
  const auto c =
      std::find_if(cases().begin(), cases().end(), [](const Case& k) { return k.name == "seed_block"; });
  ASSERT_NE(c, cases().end());
  const Expected expected = load_expected(*c);
  const Engine engine(load_model(*c), {.device = Device::cpu(), .plan = "reference"});
  Tensor y = engine.run(make_input(*c, 64));
  EXPECT_LE(compare(*c, expected, y).cells, 3e-6);
  y.values<float>()[static_cast<std::size_t>(y.elements() - 1)] += 0.1f;
  EXPECT_GT(compare(*c, expected, y).cells, 3e-6);
  y.values<float>()[static_cast<std::size_t>(expected.positions[5])] += 0.1f;
  EXPECT_GT(compare(*c, expected, y).values, 1e-6);
}

// Faults that transpose weights or drop a bias would go unseen if the fixtures did not depend on them.
TEST(Fixtures, CoverTheContract) {
  EXPECT_GE(cases().size(), 35u);
  const auto count = [](auto&& predicate) {
    return std::count_if(cases().begin(), cases().end(), predicate);
  };
  EXPECT_GE(count([](const Case& c) { return c.mask.has_value(); }), 5);
  EXPECT_GE(count([](const Case& c) { return c.output.channels >= 768; }), 2);
  EXPECT_GE(count([](const Case& c) { return c.shape.columns == 1 || c.shape.rows == 1; }), 3);
  EXPECT_GE(count([](const Case& c) { return c.shape.columns > 500 || c.shape.rows > 500; }), 3);
}

// A checkpoint as PyTorch saves it, under the module's own names, through the model file of the
// documentation.
TEST(Checkpoint, OfAPyTorchModuleLoadsAsItIs) {
  const auto c = std::find_if(cases().begin(), cases().end(),
                              [](const Case& k) { return k.name == "seed_block_checkpoint"; });
  ASSERT_NE(c, cases().end());
  const Model model =
      Model::load(std::filesystem::path(WARPWEAVE_SOURCE_DIR) / "configs/axial_block.yaml", c->weights);
  const Engine engine(model, {.device = Device::cpu()});
  const Tensor y = engine.run(make_input(*c, 64));
  EXPECT_LE(compare(*c, load_expected(*c), y).values, 1e-6);
}

}  // namespace
}  // namespace warpweave::accuracy

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::AddGlobalTestEnvironment(new warpweave::accuracy::Table);  // owned by GoogleTest
  return RUN_ALL_TESTS();
}
