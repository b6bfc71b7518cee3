// The models and shapes that are measured: a user's own, or a suite of axial blocks from where such models
// are used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "warpweave/warpweave.h"

namespace warpweave::bench {

// An axial block (a row layer and a column layer, LayerNorm, residual) on a grid [batch, rows, columns, dim].
struct BlockCase {
  std::string name;
  std::int64_t batch, rows, columns, dim, heads;
};

// "cpu" or "gpu"; throws Error(input) otherwise. The shapes and what they stand for: docs/performance.md.
const std::vector<BlockCase>& suite(const std::string& name);

// The block with random weights.
Model block_model(const BlockCase& block);

}  // namespace warpweave::bench
