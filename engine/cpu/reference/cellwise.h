// Layers that treat every cell on its own: rows [cells, in] -> rows [cells, out], in tiles over the threads.
#pragma once

#include <algorithm>

#include "cpu/reference/matrix.h"
#include "cpu/step.h"

namespace warpweave::cpu::reference {

// Calls function(x, y) for tiles of consecutive cells; x [n, in] and y [n, out] are maps of the grids.
template <class T, class Function>
void for_cells(const StepRun& run, std::int64_t in, std::int64_t out, const Function& function) {
  constexpr std::int64_t kTile = 64;
  run.pool->parallel_for(
      run.batch * run.input.cells(), kTile, [&](std::int64_t begin, std::int64_t end, int) {
        const ConstGridRows<T> x(static_cast<const T*>(run.x) + begin * in, end - begin, in,
                                 Eigen::OuterStride<>(in));
        GridRows<T> y(static_cast<T*>(run.y) + begin * out, end - begin, out, Eigen::OuterStride<>(out));
        function(x, y);
      });
}

}  // namespace warpweave::cpu::reference
