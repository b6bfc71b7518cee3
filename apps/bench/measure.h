// Times of a model on a shape, plan against plan.
#pragma once

#include <string>
#include <vector>

#include "warpweave/warpweave.h"

namespace warpweave::bench {

// Median of at least `repeats` runs after a first that is not counted, going on until each plan was measured
// for `seconds`. Several plans take turns, so that a change of the machine's clock meets all alike.
struct Protocol {
  int repeats = 7;
  double seconds = 1;
};

struct Measurement {
  std::string name;             // of the case
  std::string plan;             // as asked for: "auto", "cpu_fused", ...
  std::string implementations;  // that run the layers, most used first
  GridShape input;
  std::vector<double> times;  // in seconds, sorted
  double flops = 0, bytes = 0;
  double error = 0, error_limit = 0;  // see correctness.h
  std::string failure;                // why there are no times: declined, or wrong results

  double median() const;
  bool wrong() const noexcept { return !(error <= error_limit); }
};

// Measures the model under every one of `plans`, from a float32 grid to one of type `output`; options.plan is
// ignored. A plan that declines every layer, and one that gives wrong or non-finite results, is not timed and
// says so in `failure`.
std::vector<Measurement> measure(const std::string& name, const Model& model, const Shape& shape,
                                 const EngineOptions& options, DType output,
                                 const std::vector<std::string>& plans, const Protocol& protocol);

}  // namespace warpweave::bench
