// Building blocks of the reference: plain Eigen, in T = float or double, rounding where a GPU would.
#pragma once

#include <Eigen/Dense>
#include <cmath>
#include <cstdint>

#include "graph/layer.h"
#include "numeric/half.h"
#include "warpweave/types.h"
#include "weights/load.h"

namespace warpweave::cpu::reference {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Row = Eigen::Matrix<T, 1, Eigen::Dynamic>;
template <class T>
using GridRows = Eigen::Map<Matrix<T>, 0, Eigen::OuterStride<>>;  // rows of a grid, any distance apart
template <class T>
using ConstGridRows = Eigen::Map<const Matrix<T>, 0, Eigen::OuterStride<>>;

// Product operands and stored grids have the precision's type; nothing else is rounded.
template <class Derived>
void round_to(Precision precision, Eigen::MatrixBase<Derived>& m) {
  using T = typename Derived::Scalar;
  if (precision == Precision::bf16)
    m = m.unaryExpr([](T v) { return static_cast<T>(warpweave::round_to_bf16(static_cast<float>(v))); });
  if (precision == Precision::fp16)
    m = m.unaryExpr([](T v) { return static_cast<T>(warpweave::round_to_f16(static_cast<float>(v))); });
}

// A weight [out, in] or bias [out] as the layer multiplies with it; empty when the layer has none.
template <class T>
Matrix<T> matrix_of(const weights::LayerWeights& weights, const std::string& name, Precision precision) {
  const auto it = weights.all().find(name);
  if (it == weights.all().end()) return {};
  const std::vector<std::int64_t>& shape = it->second.shape();
  const auto* values = static_cast<const float*>(it->second.data());
  Matrix<T> m = Eigen::Map<const Matrix<float>>(values, shape[0], shape[1]).template cast<T>();
  round_to(precision, m);
  return m;
}
template <class T>
Row<T> row_of(const weights::LayerWeights& weights, const std::string& name) {
  const auto it = weights.all().find(name);
  if (it == weights.all().end()) return {};
  return Eigen::Map<const Row<float>>(static_cast<const float*>(it->second.data()), it->second.elements())
      .template cast<T>();
}

// The norm of every row, rounded for the product that follows. Statistics are double: a mean of 1e4 times the
// spread must not cancel.
template <class T>
struct NormOp {
  graph::Norm norm;
  Row<T> weight, bias;

  NormOp() = default;
  NormOp(const graph::Norm& n, const weights::LayerWeights& w)
      : norm(n), weight(row_of<T>(w, "norm.weight")), bias(row_of<T>(w, "norm.bias")) {}

  template <class Rows>
  Matrix<T> operator()(const Rows& x) const {
    Matrix<T> y = x;
    if (norm.kind == graph::NormKind::none) return y;
    for (Eigen::Index i = 0; i < y.rows(); ++i) {
      Row<double> v = y.row(i).template cast<double>();
      if (norm.kind == graph::NormKind::layer) v.array() -= v.mean();
      const double variance = v.squaredNorm() / static_cast<double>(v.size());
      v *= 1 / std::sqrt(variance + norm.eps);
      y.row(i) = v.template cast<T>().cwiseProduct(weight);
      if (norm.kind == graph::NormKind::layer) y.row(i) += bias;
    }
    return y;
  }
};

// A B, summed in double and rounded once: sums of a thousand floats lose more than 1e-6.
template <class T, class A, class B>
Matrix<T> product(const A& a, const B& b) {
  return (a.template cast<double>() * b.template cast<double>()).template cast<T>();
}

// X W^T + b; an empty bias counts as zero.
template <class T, class Rows>
Matrix<T> linear(const Rows& x, const Matrix<T>& weight, const Row<T>& bias) {
  Matrix<T> y = product<T>(x, weight.transpose());
  if (bias.size() > 0) y.rowwise() += bias;
  return y;
}

}  // namespace warpweave::cpu::reference
