// Weights in the form that the kernels read, made once when a model is loaded.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/fused/kernels.h"
#include "graph/layer.h"
#include "warpweave/tensor.h"
#include "warpweave/types.h"
#include "weights/load.h"

namespace warpweave::cpu::fused {

Rounding rounding_of(Precision precision) noexcept;

// Whether weights of so many bytes, used by one task after another, stay in a core's second-level cache
// beside what a task makes and reads.
bool stays_cached(std::int64_t bytes) noexcept;

// Owns what a PackedMatrix points to.
class Matrix {
 public:
  // The rows `order` of `weight` [any][inputs] and, unless null, of `bias`. Weights are rounded, biases are
  // not.
  Matrix(const Kernels& kernels, std::span<const std::int64_t> order, const float* weight,
         std::int64_t inputs, const float* bias, Rounding rounding);
  // All rows in order.
  Matrix(const Kernels& kernels, std::int64_t outputs, const float* weight, std::int64_t inputs,
         const float* bias, Rounding rounding);

  // Names the matrix that is used after this one, so that it is fetched in time. Matrices that are moved keep
  // their memory, so it may be called at any time.
  void then(const Matrix& next) noexcept { next_ = static_cast<const float*>(next.values_.data()); }

  // Says that this matrix and the next are in the second-level cache whenever they are used.
  void stay_cached() noexcept { cached_ = true; }

  PackedMatrix view() const noexcept;

 private:
  std::int64_t outputs_, inputs_;
  Tensor values_, bias_;
  const float* next_ = nullptr;
  bool cached_ = false;
};

// A norm's parameters; `rows` and the pointers of the result are for the caller to fill in.
class NormWeights {
 public:
  NormWeights(const graph::Norm& norm, std::int64_t channels, const weights::LayerWeights& weights);
  NormRows rows() const noexcept;

 private:
  NormType type_;
  float eps_;
  std::int64_t channels_;
  Tensor weight_, bias_;
};

}  // namespace warpweave::cpu::fused
