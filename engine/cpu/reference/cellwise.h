// Layers that treat every cell on its own: rows [cells, in] -> rows [cells, out], in tiles over the threads.
#pragma once

#include <algorithm>

#include "cpu/reference/matrix.h"
#include "cpu/step.h"

namespace warpweave::cpu::reference {

// Calls function(x, y) for tiles of consecutive cells; x [n, in] and y [n, out] are maps of the grids. Tiles
// are cut within a sample: Eigen's products give other bits for other sizes, and a sample's must not depend
// on the batch.
template <class T, class Function>
void for_cells(const StepRun& run, std::int64_t in, std::int64_t out, const Function& function) {
  constexpr std::int64_t kTile = 64;
  const std::int64_t cells = run.input.cells(), tiles = (cells + kTile - 1) / kTile;  // of a sample
  run.pool->parallel_for(run.batch * tiles, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t tile = begin; tile < end; ++tile) {
      const std::int64_t within = tile % tiles * kTile, first = tile / tiles * cells + within;
      const std::int64_t count = std::min(kTile, cells - within);
      const ConstGridRows<T> x(static_cast<const T*>(run.x) + first * in, count, in,
                               Eigen::OuterStride<>(in));
      GridRows<T> y(static_cast<T*>(run.y) + first * out, count, out, Eigen::OuterStride<>(out));
      function(x, y);
    }
  });
}

}  // namespace warpweave::cpu::reference
