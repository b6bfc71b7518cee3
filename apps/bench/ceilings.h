// The least time that a GPU allows for a block: the one place where measured ceilings stand.
#pragma once

#include <string>

#include "warpweave/types.h"

namespace warpweave::bench {

struct Work {
  double flops = 0;
  double grid_bytes = 0;    // the grid read and written, for every layer
  double exponentials = 0;  // one for each score
};

// Seconds: the largest of the three alone. 0 for a GPU whose ceilings were not measured.
double least_seconds(const std::string& gpu, Precision precision, const Work& work);

}  // namespace warpweave::bench
