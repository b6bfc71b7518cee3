// How well a matrix product's tiles divide among the multiprocessors of a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

namespace warpweave::cuda {

// 16-bit products with sums of at least this many elements are worth a look at more than the library's first
// suggestion (docs/gpu.md).
inline constexpr std::int64_t kLongSum = 256;
// The least that a choice is made for: samples with fewer tokens usually come in batches.
inline constexpr std::int64_t kFewestTokens = 4096;

// What a block computes at a time, by cuBLASLt's numbers (cublasLtMatmulTile_t; not every version's header
// has all names): the tiles that Hopper's algorithms with a tile a warpgroup were seen with.
struct ProductTile {
  int number;
  std::int64_t outputs, tokens;
};
inline constexpr ProductTile kProductTiles[] = {
    {15, 64, 64},    {17, 64, 128},   {18, 128, 64},  {19, 64, 256}, {20, 128, 128}, {21, 256, 64},
    {26, 64, 96},    {28, 96, 128},   {29, 128, 160}, {33, 128, 96}, {116, 64, 192}, {184, 144, 128},
    {197, 168, 128}, {201, 176, 128}, {208, 192, 64}, {318, 64, 80}, {400, 128, 80},
};

// Elements that a multiprocessor computes for a result [tokens, n], padding and idle turns included: whole
// rounds of as many tiles as there are multiprocessors. kUnknown for a tile that is not known.
inline constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();
inline std::int64_t elements_in_rounds(int tile, std::int64_t n, std::int64_t tokens,
                                       std::int64_t multiprocessors) {
  const auto* size = std::find_if(std::begin(kProductTiles), std::end(kProductTiles),
                                  [tile](const ProductTile& each) { return each.number == tile; });
  if (size == std::end(kProductTiles)) return kUnknown;
  const std::int64_t tiles =
      (n + size->outputs - 1) / size->outputs * ((tokens + size->tokens - 1) / size->tokens);
  return (tiles + multiprocessors - 1) / multiprocessors * size->outputs * size->tokens;
}

// Whether an algorithm that the library names later is worth leaving an earlier one for: not one that nothing
// is known of.
inline bool worth_it(std::int64_t later, std::int64_t earlier) {
  return earlier != kUnknown && static_cast<double>(later) < 0.99 * static_cast<double>(earlier);
}

}  // namespace warpweave::cuda
