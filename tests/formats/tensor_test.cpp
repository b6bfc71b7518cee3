#include "warpweave/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "formats/support.h"
#include "numeric/half.h"

namespace warpweave::testing {
namespace {

using ::testing::HasSubstr;

// GCC tells by macros, Clang by a feature test.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

// The 16-bit formats by their definition: sign, `exponent` bits, `mantissa` bits.
struct Format {
  int exponent, mantissa;
};
constexpr Format kF16{5, 10}, kBf16{8, 7};

double decode(std::uint32_t bits, Format f) {
  const int bias = (1 << (f.exponent - 1)) - 1;
  const std::uint32_t fraction = bits & ((1u << f.mantissa) - 1);
  const int e = static_cast<int>(bits >> f.mantissa) & ((1 << f.exponent) - 1);
  const double sign = bits >> (f.exponent + f.mantissa) != 0 ? -1 : 1;
  if (e == (1 << f.exponent) - 1) return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
  const double significand = std::ldexp(fraction, -f.mantissa) + (e > 0 ? 1 : 0);
  return sign * std::ldexp(significand, (e > 0 ? e : 1) - bias);
}

// Nearest even by search: the two neighbours of |value| among the finite values, and 2^emax beyond the last.
std::uint16_t encode(double value, Format f) {
  const std::uint32_t sign = std::signbit(value) ? 0x8000u : 0;
  const double x = std::fabs(value);
  const std::uint32_t infinity = ((1u << f.exponent) - 1) << f.mantissa;
  std::uint32_t low = 0, high = infinity;  // decode(low) <= x < "decode(high)"
  const auto at = [&](std::uint32_t b) {
    return b == infinity ? std::ldexp(1, 1 << (f.exponent - 1)) : decode(b, f);
  };
  if (x >= at(infinity)) return static_cast<std::uint16_t>(sign | infinity);
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (at(middle) <= x ? low : high) = middle;
  }
  const double below = x - at(low), above = at(high) - x;  // exact: x is within one step of both
  const bool up = above < below || (above == below && (low & 1) != 0);
  return static_cast<std::uint16_t>(sign | (up ? high : low));
}

TEST(Half, EveryPatternConvertsExactlyAndBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    for (const bool is_f16 : {true, false}) {
      const float value = is_f16 ? f16_to_float(half) : bf16_to_float(half);
      const double expected = decode(bits, is_f16 ? kF16 : kBf16);
      const std::uint16_t back = is_f16 ? float_to_f16(value) : float_to_bf16(value);
      const std::uint16_t back64 = is_f16 ? double_to_f16(value) : double_to_bf16(value);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(value));
        ASSERT_TRUE(std::isnan(decode(back, is_f16 ? kF16 : kBf16)));
        ASSERT_TRUE(std::isnan(decode(back64, is_f16 ? kF16 : kBf16)));
        ASSERT_EQ(back >> 15, half >> 15);
      } else {
        ASSERT_EQ(value, expected);
        ASSERT_EQ(std::signbit(value), half >> 15 != 0);
        ASSERT_EQ(back, half);
        ASSERT_EQ(back64, half);
      }
    }
  }
}

// Values at, just below and just above every midpoint of two neighbours, and beyond the largest.
TEST(Half, RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x8000; ++bits) {
    for (const bool is_f16 : {true, false}) {
      const Format f = is_f16 ? kF16 : kBf16;
      const std::uint32_t infinity = ((1u << f.exponent) - 1) << f.mantissa;
      if (bits >= infinity) continue;
      const double next = bits + 1 == infinity ? std::ldexp(1, 1 << (f.exponent - 1)) : decode(bits + 1, f);
      const double middle = (decode(bits, f) + next) / 2;  // exact in double, and in float
      for (const double x : {middle, std::nextafter(middle, 0), std::nextafter(middle, HUGE_VAL)}) {
        ASSERT_EQ(is_f16 ? double_to_f16(x) : double_to_bf16(x), encode(x, f)) << x;
        ASSERT_EQ(is_f16 ? double_to_f16(-x) : double_to_bf16(-x), encode(-x, f)) << -x;
      }
      const float m = static_cast<float>(middle);
      for (const float x : {m, std::nextafter(m, 0.0f), std::nextafter(m, HUGE_VALF)})
        ASSERT_EQ(is_f16 ? float_to_f16(x) : float_to_bf16(x), encode(x, f)) << x;
    }
  }
}

TEST(Half, RoundsRandomNumbersOfAllSizes) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto x = std::bit_cast<double>(random());
    const auto small = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isnan(x)) {
      ASSERT_EQ(double_to_f16(x), encode(x, kF16)) << x;
      ASSERT_EQ(double_to_bf16(x), encode(x, kBf16)) << x;
    }
    if (!std::isnan(small)) {
      ASSERT_EQ(float_to_f16(small), encode(small, kF16)) << small;
      ASSERT_EQ(float_to_bf16(small), encode(small, kBf16)) << small;
    }
  }
}

TEST(Tensor, OwnsAlignedMemoryAndCopiesDeeply) {
  for (const std::int64_t size : {0, 1, 3, 100}) {
    Tensor a(DType::f32, {size, 2});
    EXPECT_EQ(a.elements(), 2 * size);
    EXPECT_EQ(a.bytes(), static_cast<std::size_t>(8 * size));
    ASSERT_NE(a.data(), nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 64, 0u);
    for (float& v : a.values<float>()) v = 1;
    Tensor b = a;
    EXPECT_EQ(b.shape(), a.shape());
    for (float& v : b.values<float>()) v = 2;
    for (const float v : a.values<float>()) EXPECT_EQ(v, 1);
    a = b;
    for (const float v : a.values<float>()) EXPECT_EQ(v, 2);
    a = *&a;
    EXPECT_EQ(a.shape(), b.shape());
    const void* const memory = a.data();
    const Tensor moved = std::move(a);
    EXPECT_EQ(moved.data(), memory);
  }
  const Tensor empty, copy = empty;  // NOLINT: the copy is the test
  EXPECT_EQ(copy.elements(), 0);
  EXPECT_EQ(copy.data(), nullptr);
}

TEST(Tensor, RefusesImpossibleShapes) {
  EXPECT_THAT(error_of([] { Tensor(DType::f32, {2, -1}); }), HasSubstr("[2, -1] has a negative size"));
  const std::int64_t big = std::int64_t{1} << 31;
  EXPECT_THAT(error_of([&] { Tensor(DType::f32, {big, big}); }), HasSubstr("too many elements"));
  EXPECT_THAT(error_of([&] { Tensor(DType::f64, {big, big / 4}); }), HasSubstr("too many elements"));
  EXPECT_THAT(error_of([&] { Tensor(DType::u8, {0, big, big, big}); }), HasSubstr("too many elements"));
  EXPECT_THAT(error_of([] {
                Tensor::from({2, 2}, std::vector<float>{1, 2, 3});
              }),
              HasSubstr("needs 4 values, not 3"));
}

TEST(Tensor, RefusedMemoryIsADeviceError) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer stops the program where an allocation this large is to fail";
  const auto action = [] { Tensor(DType::u8, {std::int64_t{1} << 60}); };  // more than an address space
  EXPECT_THAT(error_of(action, ErrorCode::device), HasSubstr("out of memory: 1152921504606846976 bytes"));
}

TEST(Tensor, ConvertsBetweenAllTypes) {
  const std::vector<float> values = {0.0f,     -0.0f,     1.0f,       -2.5f,
                                     65504.0f, HUGE_VALF, -HUGE_VALF, std::nanf("")};
  const Tensor x = Tensor::from({8}, values);
  for (const DType a : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const DType b : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      const Tensor y = x.to(a).to(b).to(DType::f32);
      EXPECT_EQ(x.to(a).to(b).dtype(), b);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float v = y.values<float>()[i];
        if (std::isnan(values[i])) {
          EXPECT_TRUE(std::isnan(v));
        } else if (values[i] != 65504.0f || (a != DType::bf16 && b != DType::bf16)) {
          EXPECT_EQ(std::bit_cast<std::uint32_t>(v), std::bit_cast<std::uint32_t>(values[i]));
        } else {
          // bfloat16 rounds 65504 to 65536, which float16 has only as infinity.
          EXPECT_EQ(v, a == DType::bf16 && b == DType::f16 ? HUGE_VALF : 65536.0f);
        }
      }
    }
  }
  // Once, not twice: 1 + 2^-11 + 2^-40 is above the midpoint of two float16 and rounds up, but as float32 it
  // is the midpoint.
  Tensor wide(DType::f64, {2});
  wide.values<double>()[0] = 1 + 0x1p-11 + 0x1p-40;
  wide.values<double>()[1] = 1e300;
  EXPECT_EQ(wide.to(DType::f16).values<std::uint16_t>()[0], 0x3C01);
  EXPECT_EQ(wide.to(DType::f32).values<float>()[1], HUGE_VALF);
}

TEST(Tensor, MasksConvertToNumbersButNotBack) {
  Tensor mask(DType::u8, {3});
  std::memcpy(mask.data(), "\0\1\x9", 3);
  EXPECT_EQ(mask.to(DType::f32).values<float>()[2], 9);
  EXPECT_EQ(mask.to(DType::boolean).values<std::uint8_t>()[2], 1);
  EXPECT_EQ(mask.to(DType::boolean).to(DType::f16).values<std::uint16_t>()[2], 0x3C00);
  EXPECT_THAT(error_of([] { Tensor(DType::f32, {1}).to(DType::u8); }),
              HasSubstr("cannot convert a float32 tensor to uint8"));
}

TEST(Tensor, ViewsAndAccessCheckRankAndType) {
  const Tensor grid(DType::f16, {1, 2, 3, 4});
  EXPECT_EQ(grid.grid(), (GridShape{1, 2, 3, 4}));
  EXPECT_EQ(view(grid).type, DType::f16);
  EXPECT_EQ(view(grid).data, grid.data());
  EXPECT_THAT(error_of([&] { Tensor(DType::f32, {2, 3}).grid(); }), HasSubstr("this tensor has 2: [2, 3]"));
  EXPECT_THAT(error_of([&] { grid.values<float>(); }),
              HasSubstr("a float16 tensor does not have elements of 4 bytes"));
  const Tensor mask(DType::boolean, {1, 2, 3});
  EXPECT_EQ(mask_view(mask).columns, 3);
  EXPECT_THAT(error_of([&] { mask_view(grid); }), HasSubstr("a mask has three sizes"));
  EXPECT_THAT(error_of([&] {
                mask_view(Tensor(DType::f32, {1, 2, 3}));
              }),
              HasSubstr("this tensor is float32"));
}

TEST(Types, NamesAreReadBack) {
  for (const DType t : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::u8, DType::boolean})
    EXPECT_EQ(parse_dtype(to_string(t)), t);
  for (const Precision p :
       {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16, Precision::fp64})
    EXPECT_EQ(parse_precision(to_string(p)), p);
  for (const Device d : {Device::automatic(), Device::cpu(), Device::cuda(), Device::cuda(7)})
    EXPECT_EQ(parse_device(to_string(d)), d);
  EXPECT_EQ(parse_device("cuda"), Device::cuda(0));
  EXPECT_EQ(storage_type(Precision::tf32), DType::f32);
  EXPECT_THAT(error_of([] { parse_dtype("float8"); }),
              HasSubstr("'float8', expected float64, float32, float16"));
  EXPECT_THAT(error_of([] { parse_precision("int8"); }),
              HasSubstr("'int8', expected fp32, tf32, bf16, fp16 or fp64"));
  for (const char* bad : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999", "CPU"})
    EXPECT_THAT(error_of([&] { parse_device(bad); }), HasSubstr("expected auto, cpu, cuda or cuda:N"));
}

TEST(Types, GridShapesAreChecked) {
  EXPECT_NO_THROW(check({1, 16384, 16384, 128}, "grid"));  // 2^35 elements
  EXPECT_THAT(error_of([] { check({1, 0, 3, 4}, "input grid"); }), HasSubstr("input grid [1, 0, 3, 4]"));
  EXPECT_THAT(error_of([] { check({1, -5, 3, 4}, "grid"); }), HasSubstr("at least 1"));
  const std::int64_t big = std::int64_t{1} << 32;
  EXPECT_THAT(error_of([&] { check({big, big, 1, 1}, "grid"); }), HasSubstr("too many elements"));
  EXPECT_THAT(error_of([&] { check({big / 16, big / 16, 2, 1}, "grid"); }), HasSubstr("too many elements"));
  EXPECT_NO_THROW(check({big / 16, big / 16 - 1, 1, 1}, "grid"));
}

}  // namespace
}  // namespace warpweave::testing
