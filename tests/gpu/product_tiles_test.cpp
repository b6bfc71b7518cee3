#include "cuda/product_tiles.h"

#include <gtest/gtest.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif

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
  // Of a tile that is not known nothing is known.
  EXPECT_FALSE(worth_it(elements_in_rounds(k128x128, 64, 64, 132), elements_in_rounds(12345, 64, 64, 132)));
  EXPECT_FALSE(worth_it(elements_in_rounds(12345, 64, 64, 132), elements_in_rounds(k128x128, 64, 64, 132)));
}

#if CUBLAS_VER_MAJOR >= 13
TEST(ProductTiles, HaveTheLibrarysNumbers) {
  constexpr ProductTile named[] = {
#define WW_TILE(outputs, tokens) {CUBLASLT_MATMUL_TILE_##outputs##x##tokens, outputs, tokens}
      WW_TILE(64, 64),  WW_TILE(64, 128),  WW_TILE(128, 64),  WW_TILE(64, 256),  WW_TILE(128, 128),
      WW_TILE(256, 64), WW_TILE(64, 96),   WW_TILE(96, 128),  WW_TILE(128, 160), WW_TILE(128, 96),
      WW_TILE(64, 192), WW_TILE(144, 128), WW_TILE(168, 128), WW_TILE(176, 128), WW_TILE(192, 64),
      WW_TILE(64, 80),  WW_TILE(128, 80),
#undef WW_TILE
  };
  ASSERT_EQ(std::size(named), std::size(kProductTiles));
  for (std::size_t i = 0; i < std::size(named); ++i) {
    EXPECT_EQ(kProductTiles[i].number, named[i].number) << i;
    EXPECT_EQ(kProductTiles[i].outputs, named[i].outputs) << i;
    EXPECT_EQ(kProductTiles[i].tokens, named[i].tokens) << i;
  }
}
#endif

}  // namespace
}  // namespace warpweave::cuda
