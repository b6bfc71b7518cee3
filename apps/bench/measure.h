// Times of a model on a shape, plan against plan.
#pragma once

#include <string>
#include <vector>

#include "bench/suites.h"
#include "warpweave/warpweave.h"

namespace warpweave::bench {

// Median of at least `repeats` runs after a warm-up that is not counted, going on until each plan was
// measured for `seconds`. Several plans take turns, so that a change of the machine's clock meets all alike.
// A run is one pass through the model from host memory to host memory on the CPU, and a replayed graph of
// many on a GPU (timer.h). A plan so slow that it has spent `most_seconds` stops with fewer
// runs; where the warm-up alone took as long, that is its one measurement.
struct Protocol {
  int repeats = 7;
  double seconds = 1, most_seconds = 5;
};

// What is measured. Results of a block are checked at its full shape, those of other models on slabs of it.
struct Case {
  std::string name;
  Model model;
  Shape shape;
  const BlockCase* block = nullptr;
};

struct Measurement {
  std::string name;             // of the case
  std::string plan;             // as asked for: "auto", "cpu_fused", ...
  std::string implementations;  // that run the layers, most used first
  GridShape input;
  std::int64_t heads = 0;     // of a block; 0 for other models
  std::vector<double> times;  // seconds for one pass through the model, sorted
  int chain = 1;              // passes in one timed run
  double flops = 0, bytes = 0;
  double least = 0;  // seconds that the device's ceilings allow (ceilings.h); 0 where they are not known
  std::int64_t workspace = 0;         // bytes on the device
  double error = 0, error_limit = 0;  // see correctness.h
  std::string failure;                // why there are no times: declined, or wrong results

  double median() const;
  bool wrong() const noexcept { return !(error <= error_limit); }
};

// Measures the model under every one of `plans`, on grids of `type`; options.plan is ignored. A plan that
// declines every layer, and one that gives wrong or non-finite results, is not timed and says so in
// `failure`.
std::vector<Measurement> measure(const Case& what, const EngineOptions& options, DType type,
                                 const std::vector<std::string>& plans, const Protocol& protocol);

// The best single plan among measurements of one case, and auto's time over it.
struct AutoCheck {
  std::string best;
  double ratio = 0;
};
// Nothing to compare (auto or every other plan without times): an empty name.
AutoCheck check_auto(const std::vector<Measurement>& results);

// One pass through the model, unchecked and untimed, for a profiler to look at.
void run_once(const Case& what, const EngineOptions& options, DType type);

}  // namespace warpweave::bench
