// Measurements for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"

namespace warpweave::bench {

// What was measured on.
struct Setting {
  Device device;
  std::string gpu;  // its name; empty on the CPU
  Precision precision = Precision::fp32;
  int threads = 0;
};

// One line for each measurement, and the heading over them: milliseconds and GFLOP/s on the CPU,
// microseconds, TFLOP/s and the share of what the ceilings allow on a GPU. `name_width` is the longest case
// name.
std::string table_heading(const Setting& setting, std::size_t name_width);
std::string table_line(const Setting& setting, const Measurement& m, std::size_t name_width);

// {"version", "device", "gpu", "precision", "threads", "results": [{"name", "plan", "implementations",
// "shape", "runs", "chain", "median_ms", "min_ms", "max_ms", "gflop", "gflop_per_s", "gb_per_s", "least_ms",
// "share", "workspace_bytes", "error", "failure"}, ...]}; numbers that do not exist are null.
std::string json_text(const Setting& setting, const std::vector<Measurement>& results);

}  // namespace warpweave::bench
