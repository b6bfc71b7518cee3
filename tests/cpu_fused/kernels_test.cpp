// The inner loops by themselves, on every instruction set that the machine has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cpu_fused/harness.h"

namespace warpweave::test {
namespace {

using namespace cpu::fused;

class KernelsTest : public testing::TestWithParam<const Kernels*> {};

double ulp(double exact) {
  const float f = std::fabs(static_cast<float>(exact));
  return double(std::nextafter(f, INFINITY)) - double(f);
}

TEST_P(KernelsTest, Exp2IsWithinTwoUnitsInTheLastPlace) {
  // Every 251st float (a prime, so that all low bits occur) whose result is a normal number.
  double worst = 0;
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    std::vector<float> x, y;
    for (std::uint32_t bits = 0; bits < 0x43000000u; bits += 251) {  // below 128
      float v;
      const std::uint32_t b = bits | sign;
      std::memcpy(&v, &b, 4);
      if (v >= -126) x.push_back(v);
    }
    y = x;
    GetParam()->exp2(y.data(), std::int64_t(y.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp2(double(x[i]));
      if (exact > 3.4028235e38) continue;
      worst = std::max(worst, std::fabs(double(y[i]) - exact) / ulp(exact));
    }
  }
  RecordProperty("worst_ulp", std::to_string(worst));
  printf("worst error of exp2: %.3f ulp\n", worst);
  EXPECT_LE(worst, 2.0);
}

TEST_P(KernelsTest, Exp2AtTheEdges) {
  std::vector<float> x = {-INFINITY, -1e30f, -200, -140, -127, 0, 1, 127.5f, 129, INFINITY, NAN};
  GetParam()->exp2(x.data(), std::int64_t(x.size()));
  EXPECT_EQ(x[0], 0);
  EXPECT_EQ(x[1], 0);
  EXPECT_EQ(x[2], 0);
  EXPECT_EQ(x[3], std::ldexp(1.0f, -140));
  EXPECT_EQ(x[4], std::ldexp(1.0f, -127));
  EXPECT_EQ(x[5], 1);
  EXPECT_EQ(x[6], 2);
  EXPECT_NEAR(x[7], std::exp2(127.5), 3e31);
  EXPECT_EQ(x[8], INFINITY);
  EXPECT_EQ(x[9], INFINITY);
  EXPECT_TRUE(std::isnan(x[10]));
}

TEST_P(KernelsTest, ActivationsFollowTheirDefinitions) {
  std::vector<float> points;
  for (int i = -200000; i <= 200000; ++i) points.push_back(float(i) * 1e-4f);
  const auto worst = [&](ActivationType type, auto exact) {
    std::vector<float> y = points;
    GetParam()->activate(type, y.data(), std::int64_t(y.size()));
    double e = 0;
    for (std::size_t i = 0; i < y.size();
         ++i)  // relative to the argument, as a product with the weights sees it
      e = std::max(e, std::fabs(double(y[i]) - exact(double(points[i]))) /
                          std::max(1e-3, std::fabs(double(points[i]))));
    return e;
  };
  EXPECT_LT(worst(ActivationType::gelu, [](double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }),
            2e-7);
  EXPECT_LT(worst(ActivationType::gelu_tanh,
                  [](double x) {
                    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
                  }),
            3e-7);
  EXPECT_LT(worst(ActivationType::silu, [](double x) { return x / (1 + std::exp(-x)); }), 2e-7);
  EXPECT_EQ(worst(ActivationType::relu, [](double x) { return x > 0 ? x : 0; }), 0);
}

TEST_P(KernelsTest, ActivationsOfLargeArguments) {
  for (const auto type :
       {ActivationType::gelu, ActivationType::gelu_tanh, ActivationType::silu, ActivationType::relu}) {
    float x[] = {-1e30f, -1e6f, -100, 100, 1e6f, 1e30f, NAN};
    GetParam()->activate(type, x, 7);
    for (int i = 0; i < 3; ++i) EXPECT_NEAR(x[i], 0, 1e-30);
    EXPECT_EQ(x[3], 100);
    EXPECT_EQ(x[4], 1e6f);
    EXPECT_EQ(x[5], 1e30f);
    EXPECT_TRUE(std::isnan(x[6]));
  }
}

TEST_P(KernelsTest, RoundsToNearestEven) {
  float x[] = {1.00390625f, 1.01171875f, -3.1415927f, NAN};  // the first two are ties of bf16
  GetParam()->round(Rounding::bf16, x, 4);
  EXPECT_EQ(x[0], 1.0f);
  EXPECT_EQ(x[1], 1.015625f);
  EXPECT_EQ(x[2], -3.140625f);
  EXPECT_TRUE(std::isnan(x[3]));
  float y[] = {1.00048828125f, 1.00146484375f, 1e6f};
  GetParam()->round(Rounding::fp16, y, 3);
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[1], 1.001953125f);
  EXPECT_EQ(y[2], INFINITY);
}

INSTANTIATE_TEST_SUITE_P(All, KernelsTest, testing::ValuesIn(all_kernels()),
                         [](const auto& tested) { return std::string(tested.param->name); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KernelsTest);

}  // namespace
}  // namespace warpweave::test
