// Numbers that are the same on every machine, for random weights and for the inputs of tests and benchmarks.
//
// A string key and a seed choose a stream: h = FNV-1a (64 bit) of the key's bytes, mix = the finaliser of
// splitmix64 (Steele, Lea and Flood 2014), state = mix(seed ^ h). Element k takes
//
//   u_k      = mix(state + (k + 1) * 0x9E3779B97F4A7C15)  mod 2^64
//   normal_k = (s - 131070) * sqrt(3) / 65536             s: the sum of the four 16-bit pieces of u_k
//
// in double: an Irwin-Hall sum of four, mean 0, variance 1 (to 1e-9), within +-3.47. Integer arithmetic and
// one product: no libm, so every language gives equal bits. (tests/reference has it in Python.)
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace warpweave::weights {

class NormalStream {
 public:
  NormalStream(std::uint64_t seed, std::string_view key) noexcept;
  double operator[](std::uint64_t k) const noexcept;

 private:
  std::uint64_t state_;
};

// out[k] = float(normal_k).
void fill_normal(std::span<float> out, std::uint64_t seed, std::string_view key) noexcept;

}  // namespace warpweave::weights
