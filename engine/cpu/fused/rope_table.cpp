#include "cpu/fused/rope_table.h"

#include <algorithm>
#include <cmath>

namespace warpweave::cpu::fused {

RopeTable::RopeTable(const graph::Rope& rope) : pairs_(rope.dims / 2) {
  for (std::int64_t c = 0; c < pairs_; ++c)
    frequency_.push_back(
        std::pow(rope.theta, -2.0 * static_cast<double>(c) / static_cast<double>(rope.dims)));
  for (std::int64_t p = 0; p < kStep; ++p)
    for (const double f : frequency_) near_.push_back(std::polar(1.0, static_cast<double>(p) * f));
}

void RopeTable::fill(std::int64_t length, ThreadPool& pool, float* cosine, float* sine) const {
  const std::int64_t steps = (length + kStep - 1) / kStep;
  if (steps * pairs_ < 256) {  // not worth waking anybody
    for (std::int64_t s = 0; s < steps; ++s) fill_step(s, length, cosine, sine);
    return;
  }
  pool.parallel_for(steps, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t s = begin; s < end; ++s) fill_step(s, length, cosine, sine);
  });
}

void RopeTable::fill_step(std::int64_t step, std::int64_t length, float* cosine, float* sine) const {
  const std::int64_t first = step * kStep, count = std::min(kStep, length - first);
  for (std::int64_t c = 0; c < pairs_; ++c) {
    const double angle = static_cast<double>(first) * frequency_[static_cast<std::size_t>(c)];
    const double re = std::cos(angle), im = std::sin(angle);
    for (std::int64_t p = 0; p < count; ++p) {
      const std::complex<double>& n = near_[static_cast<std::size_t>(p * pairs_ + c)];
      cosine[(first + p) * pairs_ + c] = static_cast<float>(re * n.real() - im * n.imag());
      sine[(first + p) * pairs_ + c] = static_cast<float>(re * n.imag() + im * n.real());
    }
  }
}

}  // namespace warpweave::cpu::fused
