// What the host decides about norm, q, k and v in one kernel: when, and how weights are rounded. Needs no
// GPU.
#include "cuda/composed/wide_layer.h"
#include "cuda/composed/wide_pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "warpweave/tensor.h"

namespace warpweave::cuda {
namespace {

TEST(WidePlanFor, FitsAMultiprocessor) {
  for (const int head : {48, 64}) {
    for (const int slot : {0, 16, 32, 64, 128}) {
      const WidePlan plan{head, slot};
      EXPECT_LE(plan.shared_bytes(), WidePlan::kMostBytes) << head << " " << slot;
      EXPECT_GE(plan.stages(), 4) << head << " " << slot;
      EXPECT_EQ(plan.stage_bytes() % 1024, 0) << head;
      EXPECT_EQ(plan.groups_at() % 1024, 0) << head;
      EXPECT_EQ(plan.barriers_at() % 8, 0) << head;
    }
  }
  EXPECT_LE((WidePlan::kGroups * WidePlan::kComputeRegisters + WidePlan::kLoadRegisters) * 128,
            65536 / WidePlan::kThreads / 8 * 8 * WidePlan::kThreads);
}

TEST(WidePlanFor, TakesWideTokensOfHopper) {
  const plan::Conditions hopper{Precision::bf16, 90, 227 * 1024};
  EXPECT_TRUE(takes_wide_layer({8, 48, 384}, hopper));
  EXPECT_FALSE(takes_wide_layer({8, 32, 256}, hopper));   // the long family's
  EXPECT_FALSE(takes_wide_layer({8, 48, 388}, hopper));   // no multiple of 16 bytes
  EXPECT_FALSE(takes_wide_layer({8, 48, 4096}, hopper));  // more than a warp's registers hold
  EXPECT_FALSE(takes_wide_layer({8, 48, 384}, {Precision::fp32, 90, 227 * 1024}));
  EXPECT_FALSE(takes_wide_layer({8, 48, 384}, {Precision::bf16, 100, 227 * 1024}));
}

TEST(WidePlanFor, AttendsWhereSequencesFillItems) {
  const auto slot = [](const WideShape& shape, std::int64_t length, std::int64_t neighbours,
                       bool causal = false) {
    const auto plan = wide_attention_plan(shape, {shape.heads, shape.head_dim, length, causal}, neighbours);
    return plan ? plan->slot : 0;
  };
  const WideShape audio{8, 48, 384}, msa{12, 64, 768};
  EXPECT_EQ(slot(audio, 60, 800), 64);
  EXPECT_EQ(slot(audio, 16, 800), 16);
  EXPECT_EQ(slot(msa, 128, 512), 128);
  EXPECT_EQ(slot(msa, 16, 1568), 16);
  EXPECT_EQ(slot(msa, 129, 512), 0);
  EXPECT_EQ(slot(msa, 72, 512), 0);         // nearly half an item would be padding
  EXPECT_EQ(slot(msa, 16, 2), 0);           // likewise
  EXPECT_EQ(slot(msa, 128, 512, true), 0);  // causal
  EXPECT_EQ(slot({8, 32, 384}, 60, 800), 0);
}

std::vector<float> random(std::size_t count, float size, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(count);
  for (float& e : v) e = normal(engine) * size;
  return v;
}
std::vector<float> stored(const std::vector<float>& v, Precision precision) {
  const Tensor t =
      Tensor::from({static_cast<std::int64_t>(v.size())}, v).to(storage_type(precision)).to(DType::f32);
  return {t.values<float>().begin(), t.values<float>().end()};
}

// Rows have no sum left, to the last bit, and weights are off by hardly more than rounding. With and without
// a norm's gain.
void expect_no_sums(Precision precision, std::size_t dim, bool with_gain) {
  const double digit = precision == Precision::bf16 ? 0x1p-8 : 0x1p-11;
  const std::size_t rows = 3 * 16;
  auto weight = random(rows * dim, 0.05f, 1);
  for (std::size_t k = 0; k < dim; ++k) {
    weight[k] = 0.25f;                            // nothing is left of it
    weight[dim + k] = k % 2 ? 0.3f : -0.3f;       // all of one size
    weight[2 * dim + k] *= k == 7 ? 1e4f : 1.0f;  // one far above the others
    weight[3 * dim + k] += 3.0f;                  // far from zero
    weight[4 * dim + k] *= std::exp2(-static_cast<float>(k % 30));
    weight[5 * dim + k] = k % 5 ? 0.0f : 0.125f;
    weight[6 * dim + k] = k == 3 ? 1.0f : 0.0f;
    weight[7 * dim + k] = 0.0f;
  }
  const auto gain = random(dim, 0.3f, 2), shift = random(dim, 0.3f, 3), bias = random(rows, 0.3f, 4);
  const PackedProjection packed = pack_qkv({1, 16, static_cast<std::int64_t>(dim)},
                                           {.qkv = weight,
                                            .qkv_bias = bias,
                                            .norm_weight = with_gain ? gain.data() : nullptr,
                                            .norm_bias = shift.data(),
                                            .eps = 1e-5f},
                                           precision);
  const auto folded = [&](std::size_t row, std::size_t k) {
    return double{weight[row * dim + k]} * (with_gain ? gain[k] : 1.0f);
  };
  EXPECT_EQ(packed.weight, stored(packed.weight, precision));
  for (std::size_t row = 0; row < rows; ++row) {
    double sum = 0, mean = 0, added = bias[row], off = 0, size = 0;
    for (std::size_t k = 0; k < dim; ++k) {
      sum += packed.weight[row * dim + k];
      mean += folded(row, k) / static_cast<double>(dim);
      added += double{weight[row * dim + k]} * shift[k];
    }
    const auto what = [&] {
      return std::string(to_string(precision)) + " " + std::to_string(dim) + " row " + std::to_string(row);
    };
    EXPECT_EQ(sum, 0) << what();
    EXPECT_NEAR(packed.bias[row], added, 1e-4 * std::max(1.0, std::fabs(added))) << what();
    for (std::size_t k = 0; k < dim; ++k) {
      const double exact = folded(row, k) - mean,
                   error = double{packed.weight[row * dim + k]} * packed.unit - exact;
      off += error * error, size += exact * exact;
    }
    // Rounding to nearest alone comes to half of this; to more where elements are alike or few.
    EXPECT_LE(off, (row < 8 ? 1.0 : 0.4) * size * digit * digit + 1e-12) << what();
  }
}
TEST(WidePack, RowsSumUpToZero) {
  for (const Precision precision : {Precision::bf16, Precision::fp16})
    for (const std::size_t dim : {264, 384, 776})
      for (const bool with_gain : {false, true}) expect_no_sums(precision, dim, with_gain);
}

// Rows of a single weight, and of a few; their rest is spread over the others.
TEST(WidePack, RowsOfFewWeightsSumUpToZero) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    for (const std::size_t dim : {264, 408, 776, 816, 1000, 1632, 1960, 2048}) {
      for (const float large : {1e-6f, 0.7f, 1.0f, 3.0f, 100.0f, 1e6f}) {
        auto weight = random(48 * dim, 0.05f, static_cast<std::uint32_t>(dim));
        for (std::size_t row = 0; row < 48; ++row) {
          float* const from = weight.data() + row * dim;
          if (row % 3 < 2) std::fill_n(from, dim, 0.0f);
          for (std::size_t k = 0; k < 1 + row % 5; ++k)
            from[(k * 37 + row) % dim] = k % 2 ? -large / 3 : large;
        }
        const PackedProjection packed =
            pack_qkv({1, 16, static_cast<std::int64_t>(dim)}, {.qkv = weight}, precision);
        EXPECT_EQ(packed.weight, stored(packed.weight, precision));
        for (std::size_t row = 0; row < 48; ++row) {
          double sum = 0;
          for (std::size_t k = 0; k < dim; ++k) sum += packed.weight[row * dim + k];
          EXPECT_EQ(sum, 0) << to_string(precision) << " " << dim << " " << large << " row " << row;
        }
      }
    }
  }
}

// Without a layer norm a token's mean counts.
TEST(WidePack, OtherNormsKeepTheRowsAsTheyAre) {
  const WideShape shape{1, 16, 264, graph::NormKind::rms};
  const auto weight = random(48 * 264, 0.05f, 1), gain = random(264, 0.3f, 2);
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const PackedProjection packed = pack_qkv(shape, {.qkv = weight, .norm_weight = gain.data()}, precision);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const float exact = weight[i] * gain[i % 264];
      ASSERT_NEAR(packed.weight[i] * packed.unit, exact, std::fabs(exact) * 4e-3f + 1e-12f) << i;
    }
  }
}

// In fp16 a power of two is taken out, so that large gains do not overflow.
TEST(WidePack, KeepsRange) {
  const WideShape shape{1, 16, 264};
  const auto weight = random(48 * 264, 3e5f, 1);
  const PackedProjection packed = pack_qkv(shape, {.qkv = weight}, Precision::fp16);
  for (const float w : packed.weight) ASSERT_LE(std::fabs(w), 32768.0f);
  EXPECT_GT(packed.unit, 1.0f);
}

// What is not finite stays in its row, and the others are as without it.
TEST(WidePack, LeavesWhatIsNotFinite) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    auto weight = random(48 * 264, 3e4f, 1);
    const PackedProjection without = pack_qkv({1, 16, 264}, {.qkv = weight}, precision);
    weight[3] = std::nanf(""), weight[5 * 264 + 1] = INFINITY;
    const PackedProjection packed = pack_qkv({1, 16, 264}, {.qkv = weight}, precision);
    EXPECT_EQ(packed.unit, without.unit);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      if (i / 264 == 0 || i / 264 == 5) continue;
      ASSERT_EQ(packed.weight[i], without.weight[i]) << i;
    }
    EXPECT_TRUE(std::isnan(packed.weight[3]));
    EXPECT_FALSE(std::isfinite(packed.weight[5 * 264 + 1]));
  }
}

}  // namespace
}  // namespace warpweave::cuda
