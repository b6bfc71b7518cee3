// This file is compiled without contraction of a * b + c, which would change deviates from machine to
// machine.
#include "denoiser/noise.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace warpweave::denoiser {
namespace {

// ln(x) for 0 < x < 1, by ln(m 2^e) = e ln 2 + 2 atanh((m - 1) / (m + 1)), m in [1/sqrt 2, sqrt 2). The C
// library's differs in the last bit from one machine to the next.
double exact_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  const double t = (m - 1) / (m + 1), t2 = t * t;
  double series = 0;
  for (int k = 23; k >= 1; k -= 2) series = series * t2 + 1.0 / k;
  return exponent * 0.69314718055994531 + 2 * t * series;
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

// |detail| of every block of block_w x block_h pixels; a block of one pixel in a direction has no sign there.
std::vector<double> details(const Picture& p, int colour, std::int64_t block_w, std::int64_t block_h,
                            bool skip_clipped) {
  std::vector<double> found;
  const double scale = block_w * block_h == 4 ? 0.5 : 0.70710678118654752;
  for (std::int64_t y = 0; y + block_h <= p.height; y += block_h) {
    for (std::int64_t x = 0; x + block_w <= p.width; x += block_w) {
      int sum = 0, low = 255, high = 0;
      for (std::int64_t j = 0; j < block_h; ++j) {
        for (std::int64_t i = 0; i < block_w; ++i) {
          const int v =
              p.samples[static_cast<std::size_t>(((y + j) * p.width + x + i) * p.channels + colour)];
          sum += (i + j) % 2 == 0 ? v : -v;
          low = std::min(low, v);
          high = std::max(high, v);
        }
      }
      if (skip_clipped && (high == 0 || low == 255)) continue;
      found.push_back(std::abs(sum) * scale);
    }
  }
  return found;
}

}  // namespace

double NormalDeviates::uniform() {
  state_ += 0x9e3779b97f4a7c15u;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return (static_cast<double>(z >> 12) + 0.5) * 0x1p-51 - 1;
}

double NormalDeviates::next() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  double u = 0, v = 0, s = 0;
  do {
    u = uniform();
    v = uniform();
    s = u * u + v * v;
  } while (s >= 1 || s == 0);
  const double radius = std::sqrt(-2 * exact_log(s) / s);
  spare_ = v * radius;
  has_spare_ = true;
  return u * radius;
}

Picture add_noise(const Picture& clean, double sigma, std::uint64_t seed) {
  Picture noisy = clean;
  NormalDeviates deviates(seed);
  for (std::int64_t i = 0; i < clean.pixels(); ++i) {
    for (int c = 0; c < clean.colours(); ++c) {
      std::uint8_t& sample = noisy.samples[static_cast<std::size_t>(i * clean.channels + c)];
      sample = static_cast<std::uint8_t>(
          std::floor(std::clamp(sample + sigma * deviates.next(), 0.0, 255.0) + 0.5));
    }
  }
  return noisy;
}

double estimate_noise(const Picture& picture) {
  const std::int64_t block_w = picture.width > 1 ? 2 : 1, block_h = picture.height > 1 ? 2 : 1;
  if (block_w * block_h == 1) return 0;
  double total = 0;
  for (int c = 0; c < picture.colours(); ++c) {
    std::vector<double> found = details(picture, c, block_w, block_h, true);
    if (found.empty()) found = details(picture, c, block_w, block_h, false);
    total += median(found) / 0.6745;
  }
  return total / picture.colours();
}

double psnr(const Picture& picture, const Picture& clean) {
  double squares = 0;
  for (std::int64_t i = 0; i < clean.pixels(); ++i) {
    for (int c = 0; c < clean.colours(); ++c) {
      const double d =
          static_cast<double>(picture.samples[static_cast<std::size_t>(i * picture.channels + c)]) -
          clean.samples[static_cast<std::size_t>(i * clean.channels + c)];
      squares += d * d;
    }
  }
  if (squares == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(255.0 * 255.0 * static_cast<double>(clean.pixels() * clean.colours()) / squares);
}

}  // namespace warpweave::denoiser
