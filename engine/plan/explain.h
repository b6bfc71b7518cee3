// A plan as a table for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "warpweave/engine.h"

namespace warpweave::plan {

// One line for each layer (what, output, implementation, GFLOP, MB), under it why others declined, then
// totals.
std::string explain(const std::vector<PlannedLayer>& layers, std::int64_t workspace_bytes);

}  // namespace warpweave::plan
