// Which kernels are chosen, and what is declined in which words.
#include "cuda/resident/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warpweave::cuda::resident {
namespace {

using testing::HasSubstr;

const Gpu kHopper{90, 232448}, kA100{80, 166912}, kAda{89, 101376};

Problem problem(int dim, int heads, int head_dim) {
  return {.dim = dim, .heads = heads, .head_dim = head_dim, .scale = 1};
}

TEST(Choose, FitsEveryGpuItClaims) {
  int claimed = 0;
  for (const Gpu& gpu : {kHopper, kA100, kAda})
    for (const int dim : {8, 24, 64, 128, 136, 192, 256})
      for (const int head_dim : {8, 16, 32, 48, 64, 128})
        for (const int heads : {1, 4, 12})
          for (const int length : {1, 16, 17, 32, 33, 64, 65, 128, 200, 256, 257, 1000}) {
            const Choice c = choose(problem(dim, heads, head_dim), length, gpu);
            ASSERT_NE(c.declined.empty(), c.variants.empty());
            for (const Variant& v : c.variants) {
              ++claimed;
              ASSERT_LE(v.shared_bytes, gpu.shared_memory_per_block);
              ASSERT_GE(v.slot, length);
              ASSERT_EQ(v.slot % 16, 0);
              ASSERT_LE(v.warps, 16);
              ASSERT_GE(v.sequences_per_block, 1);
              ASSERT_TRUE(!v.wgmma || gpu.compute_capability == 90);
              if (v.kind == Variant::Kind::block) {
                ASSERT_EQ(v.warps % 4, 0);
                ASSERT_GE(v.warps * v.tiles * 16, v.slot);
              }
            }
          }
  EXPECT_GT(claimed, 1500);
}

TEST(Choose, TellsWhyNot) {
  EXPECT_THAT(choose(problem(20, 1, 20), 8, kHopper).declined, HasSubstr("dim 20 is not a multiple of 8"));
  EXPECT_THAT(choose(problem(32, 2, 12), 8, kHopper).declined,
              HasSubstr("head_dim 12 is not a multiple of 8"));
  EXPECT_THAT(choose(problem(264, 1, 8), 8, kHopper).declined, HasSubstr("dim 264 is larger than 256"));
  EXPECT_THAT(choose(problem(64, 1, 136), 8, kHopper).declined, HasSubstr("head_dim 136 is larger than 128"));
  EXPECT_THAT(choose(problem(256, 8, 32), 129, kHopper).declined, HasSubstr("longer than the 128"));
  EXPECT_THAT(choose(problem(128, 4, 32), 257, kHopper).declined, HasSubstr("longer than the 256"));
  EXPECT_THAT(choose(problem(64, 4, 16), 8, {75, 65536}).declined, HasSubstr("compute capability"));
  EXPECT_THAT(choose(problem(256, 8, 64), 128, kAda).declined, HasSubstr("KiB of shared memory"));
}

TEST(Choose, TheMeasuredShapes) {
  const Choice seed = choose(problem(64, 4, 16), 32, kHopper);
  ASSERT_EQ(seed.variants.size(), 2u);
  EXPECT_EQ(pick(seed, 128, 132).kind, Variant::Kind::few);
  EXPECT_EQ(pick(seed, 8192, 132).kind, Variant::Kind::many);
  EXPECT_EQ(pick(seed, 8192, 132).warps, 16);
  const Choice image = choose(problem(256, 8, 32), 64, kHopper);
  ASSERT_EQ(image.variants.size(), 1u);
  EXPECT_EQ(image.variants[0].sequences_per_block, 2);
  const Choice pair = choose(problem(128, 4, 32), 256, kHopper);
  ASSERT_EQ(pair.variants.size(), 1u);
  EXPECT_EQ(pair.variants[0].warps, 16);
  EXPECT_TRUE(pair.variants[0].wgmma);
}

// With a mask and RoPE together registers run out first: fewer warps, or the block kernel.
TEST(Choose, LeavesRoomForRegisters) {
  Problem p = problem(64, 4, 16);
  p.mask = true, p.rope_dims = 16;
  EXPECT_EQ(choose(p, 32, kHopper).variants[0].warps, 8);
  p = problem(128, 4, 32);
  EXPECT_EQ(choose(p, 32, kHopper).variants.size(), 2u);
  p.mask = true, p.rope_dims = 32;
  EXPECT_EQ(choose(p, 32, kHopper).variants[0].kind, Variant::Kind::block);
}

TEST(Expression, NamesWhatIsCompiledIn) {
  Problem p = problem(64, 4, 16);
  Choice c = choose(p, 32, kHopper);
  EXPECT_EQ(kernel_file(c.variants[0]), "resident/warp_kernels.cuh");
  EXPECT_EQ(
      kernel_expression(p, c.variants[1]),
      "warpweave::resident_few<warpweave::Spec<warpweave::bf16, 64, 4, 16, warpweave::resident::layer_norm, "
      "warpweave::resident::q_bias|warpweave::resident::out_bias|warpweave::resident::residual, 32, 4, 2, "
      "0>>");
  p.norm = Norm::none, p.out_bias = p.residual = false;
  EXPECT_THAT(kernel_expression(p, c.variants[0]), HasSubstr("no_norm, 0, 32"));
}

}  // namespace
}  // namespace warpweave::cuda::resident
