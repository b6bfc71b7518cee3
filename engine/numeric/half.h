// float16 (IEEE 754 binary16) and bfloat16 as bit patterns, converted with one rounding to nearest even.
//
// All functions are branch-free on the value (selects only), so that loops over them vectorise. A NaN stays a
// NaN (quiet, with its sign and the leading bits of its payload); overflow gives infinity; subnormals are
// exact.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace warpweave {

inline float bf16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t float_to_bf16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40u;  // quiet, also where the payload's upper half is zero
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

inline float f16_to_float(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7FFFu;
  const std::uint32_t normal = (magnitude << 13) + (112u << 23);  // exponent bias 15 becomes 127
  const std::uint32_t special = (magnitude << 13) | 0x7F800000u;  // infinity and NaN
  const std::uint32_t quiet = magnitude > 0x7C00u ? 0x00400000u : 0u;
  const float small =
      static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;  // subnormal: exact
  std::uint32_t bits = magnitude < 0x400u ? std::bit_cast<std::uint32_t>(small) : normal;
  bits = magnitude >= 0x7C00u ? (special | quiet) : bits;
  return std::bit_cast<float>(sign | bits);
}

inline std::uint16_t float_to_f16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14 the result is a multiple of 2^-24, the spacing of floats in [0.5, 1): the addition rounds.
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  std::uint32_t result = magnitude < 0x38800000u ? small : normal;
  result = magnitude >= 0x477FF000u ? 0x7C00u : result;  // 65520 and above round to infinity
  result = magnitude > 0x7F800000u ? (0x7E00u | ((magnitude >> 13) & 0x3FFu)) : result;
  return static_cast<std::uint16_t>(sign | result);
}

// `value` to float rounded to odd: exact, or the neighbour whose last bit is set. Rounding that to a type of
// at least two bits less gives what rounding `value` directly would (Boldo and Melquiond 2008).
inline float double_to_float_odd(double value) noexcept {
  const float nearest = static_cast<float>(value);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  const double back = static_cast<double>(nearest);
  const bool keep = back == value || value != value || (bits & 1u) != 0;
  const std::uint32_t other = std::fabs(back) > std::fabs(value) ? bits - 1u : bits + 1u;
  return std::bit_cast<float>(keep ? bits : other);
}

inline std::uint16_t double_to_bf16(double value) noexcept {
  return float_to_bf16(double_to_float_odd(value));
}
inline std::uint16_t double_to_f16(double value) noexcept { return float_to_f16(double_to_float_odd(value)); }

// The nearest value of the 16-bit type, as a float.
inline float round_to_bf16(float value) noexcept { return bf16_to_float(float_to_bf16(value)); }
inline float round_to_f16(float value) noexcept { return f16_to_float(float_to_f16(value)); }

}  // namespace warpweave
