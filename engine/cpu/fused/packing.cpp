#include "cpu/fused/packing.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace warpweave::cpu::fused {
namespace {

std::vector<std::int64_t> in_order(std::int64_t n) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Tensor copy(const float* values, std::int64_t n) {
  return Tensor::from({n}, {values, static_cast<std::size_t>(n)});
}

NormType type_of(graph::NormKind kind) {
  switch (kind) {
    case graph::NormKind::none:
      return NormType::none;
    case graph::NormKind::layer:
      return NormType::layer;
    case graph::NormKind::rms:
      return NormType::rms;
  }
  return NormType::none;
}

}  // namespace

Rounding rounding_of(Precision precision) noexcept {
  switch (precision) {
    case Precision::bf16:
      return Rounding::bf16;
    case Precision::fp16:
      return Rounding::fp16;
    default:
      return Rounding::none;
  }
}

bool stays_cached([[maybe_unused]] std::int64_t bytes) noexcept {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  return bytes <= ::sysconf(_SC_LEVEL2_CACHE_SIZE) / 4;  // 0 or -1 where it is not known
#else
  return false;
#endif
}

Matrix::Matrix(const Kernels& kernels, std::span<const std::int64_t> order, const float* weight,
               std::int64_t inputs, const float* bias, Rounding rounding)
    : outputs_(static_cast<std::int64_t>(order.size())), inputs_(inputs) {
  const std::int64_t panel = kernels.panel, padded = (outputs_ + panel - 1) / panel * panel;
  values_ = Tensor(DType::f32, {padded * inputs});
  bias_ = Tensor(DType::f32, {padded});
  float* to = values_.values<float>().data();
  std::fill_n(to, padded * inputs, 0.0f);
  for (std::int64_t n0 = 0; n0 < outputs_; n0 += panel) {
    const std::int64_t width =
        std::min(panel, (outputs_ - n0 + kernels.lanes - 1) / kernels.lanes * kernels.lanes);
    for (std::int64_t j = 0; j < std::min(width, outputs_ - n0); ++j) {
      const float* row = weight + order[static_cast<std::size_t>(n0 + j)] * inputs;
      for (std::int64_t k = 0; k < inputs; ++k) to[k * width + j] = row[k];
    }
    to += width * inputs;
  }
  kernels.round(rounding, values_.values<float>().data(), padded * inputs);

  float* b = bias_.values<float>().data();
  std::fill_n(b, padded, 0.0f);
  if (bias)
    for (std::int64_t n = 0; n < outputs_; ++n) b[n] = bias[order[static_cast<std::size_t>(n)]];
}

Matrix::Matrix(const Kernels& kernels, std::int64_t outputs, const float* weight, std::int64_t inputs,
               const float* bias, Rounding rounding)
    : Matrix(kernels, in_order(outputs), weight, inputs, bias, rounding) {}

PackedMatrix Matrix::view() const noexcept {
  return {static_cast<const float*>(values_.data()),
          static_cast<const float*>(bias_.data()),
          outputs_,
          inputs_,
          next_,
          cached_};
}

NormWeights::NormWeights(const graph::Norm& norm, std::int64_t channels, const weights::LayerWeights& weights)
    : type_(type_of(norm.kind)), eps_(static_cast<float>(norm.eps)), channels_(channels) {
  if (type_ != NormType::none) weight_ = copy(weights.find("norm.weight"), channels);
  if (type_ == NormType::layer) bias_ = copy(weights.find("norm.bias"), channels);
}

NormRows NormWeights::rows() const noexcept {
  NormRows rows;
  rows.type = type_;
  rows.weight = static_cast<const float*>(weight_.data());
  rows.bias = static_cast<const float*>(bias_.data());
  rows.eps = eps_;
  rows.channels = channels_;
  return rows;
}

}  // namespace warpweave::cpu::fused
