// Every case of tests/reference/cases.py on the GPU's plans in four precisions, against saved float64
// results.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "accuracy/fixture.h"
#include "support.h"

namespace warpweave::gpu_test {
namespace {

using accuracy::Case;

struct Problem {
  Case c;
  std::string plan;
  Precision precision;
};
void PrintTo(const Problem& p, std::ostream* out) {
  *out << p.c.name << " " << p.plan << " " << to_string(p.precision);
}

// Whether the plan has kernels of that precision; else it is what auto is.
bool takes(const std::string& plan, Precision precision) {
  const bool narrow = itemsize(storage_type(precision)) == 2;
  return plan == "split" ? !narrow : plan == "long" || plan == "resident" ? narrow : true;
}

std::vector<Problem> problems() {
  std::vector<Problem> list;
  for (const Case& c : accuracy::load_cases()) {
    for (const Precision precision : kPrecisions) {
      const bool narrow = itemsize(storage_type(precision)) == 2;
      if (narrow && !c.narrow) continue;
      for (const auto& plan : plans()) {
        if (takes(plan, precision)) list.push_back({c, plan, precision});
      }
      list.push_back({c, "auto", precision});
    }
  }
  return list;
}

// PyTorch's own error on a GPU, from torch_errors.json, as tests/reference/torch_errors.py writes it there:
// tf32 exists on a GPU only.
double torch_error(const std::string& name, Precision precision) {
  static const nlohmann::json errors = [] {
    std::ifstream file(WARPWEAVE_SOURCE_DIR "/tests/gpu/torch_errors.json");
    return nlohmann::json::parse(file).at("errors");
  }();
  const auto found = errors.find(name);
  return found == errors.end() ? 0 : found->value(std::string(to_string(precision)), 0.0);
}

struct Worst {
  int count = 0;
  double error = 0, share = 0;  // share: of what the contract allows
  std::string at;
};

class Table : public testing::Environment {
 public:
  static std::map<std::string, Worst>& rows() {
    static std::map<std::string, Worst> map;
    return map;
  }
  void TearDown() override {
    for (const auto& [name, w] : rows()) {
      std::printf("worst of %-22s %3d cases: %.0f %% of the limit, error %.2e, %s\n", name.c_str(), w.count,
                  100 * w.share, w.error, w.at.c_str());
    }
  }
};
const auto* const kTable = testing::AddGlobalTestEnvironment(new Table);  // owned by GoogleTest

class GpuAccuracy : public testing::TestWithParam<Problem> {};

TEST_P(GpuAccuracy, IsWithinTheLimit) {
  const auto& [c, plan, precision] = GetParam();
  const Engine e = engine(accuracy::load_model(c), plan, precision);
  Session session = e.prepare(c.shape);
  const Tensor x = accuracy::make_input(c, e.model().input_channels());
  const std::optional<Tensor> mask = accuracy::make_mask(c);
  Tensor y(DType::f32, {c.output.batch, c.output.rows, c.output.columns, c.output.channels});
  std::memset(y.data(), 0xff, y.bytes());
  const DeviceMemory device_x(x), device_y(y);  // poisoned: an element that is not written shows
  std::optional<DeviceMemory> device_mask;
  MaskView mask_view_on_device;
  if (mask) {
    device_mask.emplace(*mask);
    mask_view_on_device = mask_view(*mask);
    mask_view_on_device.data = reinterpret_cast<const std::uint8_t*>(device_mask->data());
  }
  const Stream stream;
  session.run({device_x.data(), DType::f32, session.input_shape()},
              {device_y.data(), DType::f32, session.output_shape()},
              {.mask = mask_view_on_device, .stream = stream});
  stream.wait();
  device_y.copy_to(y);

  const accuracy::Errors errors = accuracy::compare(c, accuracy::load_expected(c), y);
  const double allowed = std::max(accuracy::limit(c, precision), 1.1 * torch_error(c.name, precision));
  Worst& worst = Table::rows()[plan + " " + std::string(to_string(precision))];
  ++worst.count;
  if (!(errors.values / allowed <= worst.share)) {
    worst = {worst.count, errors.values, errors.values / allowed, c.name};
  }
  EXPECT_LE(errors.values, allowed) << session.explain();
  EXPECT_LE(errors.cells, 3 * allowed) << session.explain();
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuAccuracy, testing::ValuesIn(problems()), [](const auto& test) {
  return test.param.c.name + "_" + test.param.plan + "_" + std::string(to_string(test.param.precision));
});

}  // namespace
}  // namespace warpweave::gpu_test
