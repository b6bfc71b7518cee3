// What the host decides about layers in one kernel: when, and where weights lie. Needs no GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "cuda/long/whole_layer.h"
#include "warpweave/tensor.h"

namespace warpweave::cuda::long_sequences {
namespace {

TEST(WholeLayerPlan, IsChosenWhereTheTurnsAreFull) {
  for (const std::int64_t full : {119, 132, 238, 264, 512, 1024})
    EXPECT_TRUE(whole_layer_fills(full, 132)) << full;
  for (const std::int64_t idle : {1, 60, 118, 133, 200, 265, 300})
    EXPECT_FALSE(whole_layer_fills(idle, 132)) << idle;
  const WholeLayerPlan plan{128, 4, 2};
  EXPECT_EQ(whole_layer_plan_for(plan, 512)->tiles, 2);
  EXPECT_FALSE(whole_layer_plan_for(plan, 513));
  EXPECT_FALSE(whole_layer_plan_for(plan, 128));
}

// Every weight once, in the head's part: q's rows as they are, those of k and v in the order of a lane's
// pieces.
TEST(WholeLayerPack, HoldsEveryWeightOnce) {
  const WholeLayerPlan plan{128, 4, 2};
  constexpr int inner = 128, head = WholeLayerPlan::kHead, columns = WholeLayerPlan::kColumns;
  FoldedWeights folded;
  for (int i = 0; i < 3 * inner * plan.dim; ++i)
    folded.qkv.push_back(static_cast<float>(i % 251 - 125) * static_cast<float>(1 + i / plan.dim % 5));
  for (int i = 0; i < 3 * inner; ++i) folded.qkv_bias.push_back(static_cast<float>(i));
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const auto blob = pack_whole_layer(plan, folded, precision);
    ASSERT_EQ(blob.size(), static_cast<std::size_t>(plan.heads * plan.head_bytes()));
    for (int h = 0; h < plan.heads; ++h) {
      const std::byte* const from = blob.data() + h * plan.head_bytes();
      Tensor matrix(storage_type(precision), {columns * plan.dim});
      std::memcpy(matrix.data(), from + WholeLayerPlan::matrix_at(), matrix.bytes());
      const Tensor wide = matrix.to(DType::f32);
      std::set<int> seen;
      for (int part = 0; part < 3; ++part)
        for (int j = 0; j < 4; ++j)
          for (int c = 0; c < 4; ++c)
            for (int e = 0; e < 2; ++e) {
              const int row = part * head + 8 * j + 2 * c + e, channel = part == 0 ? row : 8 * c + 2 * j + e,
                        n = part * inner + h * head + channel;
              seen.insert(n);
              float scale = 0, bias = 0;
              std::memcpy(&scale, from + WholeLayerPlan::scale_at() + row * 4, 4);
              std::memcpy(&bias, from + WholeLayerPlan::bias_at() + row * 4, 4);
              EXPECT_EQ(bias, folded.qkv_bias[static_cast<std::size_t>(n)]);
              for (int k = 0; k < plan.dim; ++k) {
                const float exact = folded.qkv[static_cast<std::size_t>(n * plan.dim + k)],
                            got = wide.values<float>()[static_cast<std::size_t>(
                                      layout::core_index(columns, row, layout::place_of(k)))] *
                                  scale;
                EXPECT_NEAR(got, exact, std::abs(exact) * 4e-3) << n << " " << k;
              }
            }
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(columns));
    }
  }
}

}  // namespace
}  // namespace warpweave::cuda::long_sequences
