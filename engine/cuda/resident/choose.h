// Which resident kernels run a layer. The choice depends on the layer, the length of its sequences and the
// GPU, never on the batch: only `many` and `few`, which give equal bits, are told apart by the number of
// sequences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/resident/problem.h"

namespace warpweave::cuda::resident {

struct Gpu {
  int compute_capability = 0;                // 90 for 9.0
  std::int64_t shared_memory_per_block = 0;  // opt-in limit in bytes
};

struct Choice {
  std::string declined;           // why there is none, in words
  std::vector<Variant> variants;  // one; or `many` and `few`
};

Choice choose(const Problem& problem, std::int64_t length, const Gpu& gpu);

// Of a choice, what runs so many sequences on so many multiprocessors.
const Variant& pick(const Choice& choice, std::int64_t sequences, int multiprocessors);

}  // namespace warpweave::cuda::resident
