#include "cuda/product_tiles.h"

#include <gtest/gtest.h>

namespace warpweave::cuda {
namespace {

constexpr int k128x128 = 20, k128x160 = 29, k144x128 = 184;

TEST(ProductTiles, CountWholeRoundsOfTheMultiprocessors) {
  EXPECT_EQ(elements_in_rounds(k128x128, 128, 128, 132), 128 * 128);
  EXPECT_EQ(elements_in_rounds(k128x128, 128, 132 * 128, 132), 128 * 128);
  EXPECT_EQ(elements_in_rounds(k128x128, 128, 132 * 128 + 1, 132), 2 * 128 * 128);
  EXPECT_EQ(elements_in_rounds(k128x128, 129, 132 * 128, 132), 2 * 128 * 128);
  EXPECT_EQ(elements_in_rounds(k128x160, 1152, 48000, 132), 21 * 128 * 160);  // 2700 tiles
  EXPECT_EQ(elements_in_rounds(k144x128, 1152, 48000, 132), 23 * 144 * 128);  // 3000 tiles
}

// Products of docs/gpu.md: the one of audio's q, k and v is measurably faster by 144 x 128, msa768's is not.
TEST(ProductTiles, ALaterAlgorithmHasToBeWorthIt) {
  const auto better = [](std::int64_t n, std::int64_t tokens) {
    return worth_it(elements_in_rounds(k144x128, n, tokens, 132),
                    elements_in_rounds(k128x160, n, tokens, 132));
  };
  EXPECT_TRUE(better(1152, 48000));
  EXPECT_FALSE(better(2304, 65536));
  EXPECT_FALSE(worth_it(100, 100));
  EXPECT_FALSE(worth_it(elements_in_rounds(12345, 64, 64, 132), elements_in_rounds(12345, 64, 64, 132)));
  EXPECT_TRUE(worth_it(elements_in_rounds(k128x128, 64, 64, 132), elements_in_rounds(12345, 64, 64, 132)));
}

}  // namespace
}  // namespace warpweave::cuda
