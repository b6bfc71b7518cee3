// warpweave compare: how far a model's output is from an expected one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "cli/commands.h"
#include "cli/evaluate.h"
#include "cli/numbers.h"

namespace warpweave::cli {
namespace {

struct Difference {
  double relative = 0;  // |y - e| / |e|, Euclidean norms; NaN where either grid holds one
  double largest = 0;   // max |y - e|
};

Difference difference(const Tensor& y, const Tensor& expected) {
  const Tensor y64 = y.to(DType::f64), e64 = expected.to(DType::f64);
  const auto a = y64.values<double>(), e = e64.values<double>();
  double squares = 0, norm = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - e[i]);
    squares += d * d;
    norm += e[i] * e[i];
    if (!(d <= largest)) largest = std::isnan(largest) ? largest : d;  // a NaN stays
  }
  if (squares == 0) return {0, 0};
  return {norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(squares) / std::sqrt(norm),
          largest};
}

struct CompareCommand {
  CommonOptions common;
  EvaluationFiles files;
  std::string expect;
  double tolerance = 1e-5;

  int operator()() const {
    if (!(tolerance >= 0)) {
      throw Error(ErrorCode::input, fmt::format("--tolerance: {} is not a number of at least 0", tolerance));
    }
    const bool widest = common.output_dtype.empty() && engine_options(common).precision == Precision::fp64;
    const DType type = widest ? DType::f64 : output_type(common);
    const Tensor expected = load_grid(expect);
    const Tensor y = evaluate(files, common, type);
    if (y.shape() != expected.shape()) {
      throw Error(ErrorCode::input, fmt::format("{}: the shape is {}, but the model's output is {}", expect,
                                                to_string(expected.grid()), to_string(y.grid())));
    }
    const Difference d = difference(y, expected);
    const bool within = d.relative <= tolerance;  // false for NaN
    fmt::print("relative error {:.3e}, max abs {:.3e}, tolerance {:g}: {}\n", d.relative, d.largest,
               tolerance, within ? "within" : "PAST THE TOLERANCE");
    return within ? 0 : 1;
  }
};

}  // namespace

Command add_compare(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "compare", "Compares a model's output with an expected one; exit status 1 past the tolerance");
  auto options = std::make_shared<CompareCommand>();
  add_evaluation_options(*command, options->files);
  command->add_option("--expect", options->expect, "expected output, .npy or .safetensors (tensor x)")
      ->required();
  command->add_option("--tolerance", options->tolerance, "on |y - e| / |e|, Euclidean norms (1e-5)")
      ->check(finite_number());
  add_common_options(*command, options->common);
  return {command, [options] { return (*options)(); }};
}

}  // namespace warpweave::cli
