// Cosines and sines of the rotary position embedding for the positions 0 .. length - 1.
//
// The model does not know the length, and a step must not allocate: position p = 64 a + b, the angles of b
// come from a table made with the model, those of 64 a are computed, and the sum is a product of complex
// numbers, in double.
#pragma once

#include <complex>
#include <cstdint>
#include <vector>

#include "cpu/thread_pool.h"
#include "graph/layers/axial_attention.h"

namespace warpweave::cpu::fused {

class RopeTable {
 public:
  explicit RopeTable(const graph::Rope& rope);

  std::int64_t pairs() const noexcept { return pairs_; }
  // Fills cosine and sine [length][pairs].
  void fill(std::int64_t length, ThreadPool& pool, float* cosine, float* sine) const;

 private:
  static constexpr std::int64_t kStep = 64;
  void fill_step(std::int64_t step, std::int64_t length, float* cosine, float* sine) const;

  std::int64_t pairs_;
  std::vector<double> frequency_;           // [pairs]
  std::vector<std::complex<double>> near_;  // e^(i angle) of positions below kStep, [kStep][pairs]
};

}  // namespace warpweave::cpu::fused
