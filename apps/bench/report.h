// Measurements for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"

namespace warpweave::bench {

// One line for each measurement, and the heading over them; `name_width` is the longest case name.
std::string table_heading(std::size_t name_width);
std::string table_line(const Measurement& m, std::size_t name_width);

// What was measured on: part of the JSON.
struct Setting {
  std::string device, precision;
  int threads = 0;
};

// {"version", "device", "precision", "threads", "results": [{"name", "plan", "implementations", "shape",
// "runs", "median_ms", "min_ms", "max_ms", "gflop", "gflop_per_s", "gb_per_s", "error", "failure"}, ...]};
// numbers that do not exist are null.
std::string json_text(const Setting& setting, const std::vector<Measurement>& results);

}  // namespace warpweave::bench
