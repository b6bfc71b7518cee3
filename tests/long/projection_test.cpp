// What the host decides about the projections of the long family: places, packing, plans. Needs no GPU.
#include "cuda/long/projection.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "warpweave/tensor.h"

namespace warpweave::cuda::long_sequences {
namespace {

TEST(Place, IsThatOfLanes) {
  std::set<int> places;
  for (int channel = 0; channel < 96; ++channel) {
    const int place = layout::place_of(channel);
    places.insert(place);
    // Column pair `lane` of fragment group `group` of 8 is the lane's pair `group`.
    const int lane = channel % 32 / 8, pair = channel % 8 / 2;
    EXPECT_EQ(place, channel / 32 * 32 + pair * 8 + lane * 2 + channel % 2);
    EXPECT_EQ(channel, layout::channel_of(96, place / 8, place % 8));
  }
  EXPECT_EQ(places.size(), 96u);
  EXPECT_EQ(*places.rbegin(), 95);
}

TEST(Plan, FitsAndCoversEveryShapeOnce) {
  for (int k = 8; k <= kMostChannels; k += 8)
    for (int n = 8; n <= 3 * kMostChannels; n += n < 256 ? 8 : 24)
      for (const bool residual : {false, true}) {
        ProjectionShape s;
        s.k = k, s.n = n, s.residual = residual;
        const layout::ProjectPlan p = plan_of(s);
        ASSERT_LE(p.shared_bytes(), kSharedBytes);
        ASSERT_EQ(p.chunk % 32, 0);
        ASSERT_LE(p.chunk, 128);
        ASSERT_EQ(p.slice % p.chunk, 0);
        ASSERT_EQ(p.slice_bytes() % 128, 0);
        ASSERT_GE(p.slices() * p.slice, n);
        ASSERT_LT((p.slices() - 1) * p.slice, n);
      }
}

TEST(Plan, OfTheMeasuredShapes) {
  ProjectionShape s;
  s.qkv = true, s.k = 128, s.n = 384;
  EXPECT_EQ(plan_of(s).slices(), 1);
  s.k = 256, s.n = 768;
  EXPECT_EQ(plan_of(s).slices(), 2);
}

// What a layer norm gives has no mean, so that the product stays the same.
TEST(CentreRows, LeavesDifferences) {
  std::vector<float> weight = {1, 2, 3, 6, -5, -5, -5, -5};
  centre_rows(weight, 4);
  EXPECT_EQ(weight, (std::vector<float>{-2, -1, 0, 3, 0, 0, 0, 0}));
}

// Every weight is where a lane looks for it, scaled by its row's power of two.
TEST(Pack, HoldsEveryWeightOnce) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    ProjectionShape s;
    s.k = 40, s.n = 456;
    const layout::ProjectPlan p = plan_of(s);
    std::vector<float> weight(static_cast<std::size_t>(s.k) * s.n), bias(s.n);
    for (float& v : weight) v = normal(random);
    for (float& v : bias) v = normal(random);
    for (int k = 0; k < s.k; ++k) weight[static_cast<std::size_t>(7) * s.k + k] *= 1e7f;  // beyond fp16
    for (int k = 0; k < s.k; ++k) weight[static_cast<std::size_t>(8) * s.k + k] *= 1e-7f;
    const auto blob = pack_projection(p, weight, bias, precision);
    ASSERT_EQ(blob.size(), static_cast<std::size_t>(p.packed_bytes()));
    double total = 0;
    for (int n = 0; n < s.n; ++n) {
      const std::byte* slice = blob.data() + n / p.slice * p.slice_bytes();
      const int row = n % p.slice;
      float scale = 0, added = 0;
      std::memcpy(&scale, slice + p.scale() + row * 4, 4);
      std::memcpy(&added, slice + p.bias() + row * 4, 4);
      EXPECT_EQ(added, bias[n]);
      Tensor values(storage_type(precision), {s.k});
      for (int k = 0; k < s.k; ++k) {
        const std::size_t at =
            p.weight() + 2 * layout::core_index(p.slice, layout::place_of(row), layout::place_of(k));
        std::memcpy(static_cast<std::byte*>(values.data()) + 2 * k, slice + at, 2);
      }
      const Tensor wide = values.to(DType::f32);
      for (int k = 0; k < s.k; ++k) {
        const float exact = weight[static_cast<std::size_t>(n) * s.k + k],
                    got = wide.values<float>()[k] * scale;
        EXPECT_NEAR(got, exact, std::fabs(exact) * (precision == Precision::bf16 ? 4e-3 : 5e-4))
            << n << " " << k;
        total += got != 0;
      }
    }
    std::size_t nonzero = 0;  // halfwords of the matrices
    for (int slice = 0; slice < p.slices(); ++slice)
      for (int i = p.weight(); i < p.slice_bytes(); i += 2) {
        std::uint16_t v;
        std::memcpy(&v, blob.data() + slice * p.slice_bytes() + i, 2);
        nonzero += v != 0;
      }
    EXPECT_EQ(static_cast<double>(nonzero), total);
  }
}

}  // namespace
}  // namespace warpweave::cuda::long_sequences
