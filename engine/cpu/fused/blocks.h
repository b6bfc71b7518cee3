// Loops over all cells of a batch in blocks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/fused/flush_subnormals.h"
#include "cpu/fused/steps.h"
#include "cpu/thread_pool.h"

namespace warpweave::cpu::fused {

// Calls body(first cell, cells, slot) for blocks of at most kBlock that cover [0, cells).
template <class Body>
void for_blocks(ThreadPool& pool, std::int64_t cells, const Body& body) {
  const std::int64_t blocks = (cells + kBlock - 1) / kBlock;
  pool.parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end, int slot) {
    const FlushSubnormals mode;
    for (std::int64_t b = begin; b < end; ++b) body(b * kBlock, std::min(kBlock, cells - b * kBlock), slot);
  });
}

}  // namespace warpweave::cpu::fused
