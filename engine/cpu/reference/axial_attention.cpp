// Axial attention, by its definition: every sequence of the grid on its own, every head on its own.
#include "graph/layers/axial_attention.h"

#include <algorithm>
#include <vector>

#include "cpu/reference/matrix.h"
#include "cpu/reference/steps.h"

namespace warpweave::cpu::reference {
namespace {

using graph::Axis;
using graph::CellShape;
using graph::Rope;

// Rotates the first `dims` channels of every head of q or k [L, inner]; row l is at position l.
template <class T>
void rotate(Matrix<T>& m, const Rope& rope, std::int64_t heads, std::int64_t head_dim) {
  const std::int64_t half = rope.dims / 2;
  for (Eigen::Index position = 0; position < m.rows(); ++position) {
    for (std::int64_t c = 0; c < half; ++c) {
      const double frequency =
          std::pow(rope.theta, -2.0 * static_cast<double>(c) / static_cast<double>(rope.dims));
      const double angle = static_cast<double>(position) * frequency;
      const T cosine = static_cast<T>(std::cos(angle)), sine = static_cast<T>(std::sin(angle));
      const bool halves = rope.style == Rope::Style::half;
      for (std::int64_t h = 0; h < heads; ++h) {
        T& a = m(position, h * head_dim + (halves ? c : 2 * c));
        T& b = m(position, h * head_dim + (halves ? c + half : 2 * c + 1));
        const T a0 = a, b0 = b;
        a = a0 * cosine - b0 * sine;
        b = b0 * cosine + a0 * sine;
      }
    }
  }
}

template <class T>
class AxialAttentionStep final : public Step {
 public:
  AxialAttentionStep(const graph::AxialAttention& layer, const weights::LayerWeights& weights,
                     Precision precision)
      : layer_(layer),
        precision_(precision),
        norm_(layer.norm, weights),
        qkv_weight_(matrix_of<T>(weights, "qkv.weight", precision)),
        out_weight_(matrix_of<T>(weights, "out.weight", precision)),
        qkv_bias_(row_of<T>(weights, "qkv.bias")),
        out_bias_(row_of<T>(weights, "out.bias")) {}

  bool in_place() const noexcept override { return true; }

  void run(const StepRun& run) const override {
    const CellShape& shape = run.input;
    const std::int64_t length = layer_.length(shape), sequences = layer_.sequences(shape);
    // Cells from one token of a sequence to the next, and from one sequence to the next.
    const std::int64_t token_step = layer_.axis == Axis::row ? 1 : shape.columns;
    const std::int64_t sequence_step = layer_.axis == Axis::row ? shape.columns : 1;
    run.pool->parallel_for(run.batch * sequences, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t s = begin; s < end; ++s) {
        const std::int64_t first = s / sequences * shape.cells() + s % sequences * sequence_step;
        const Eigen::OuterStride<> stride(token_step * layer_.dim);
        const ConstGridRows<T> x(static_cast<const T*>(run.x) + first * layer_.dim, length, layer_.dim,
                                 stride);
        GridRows<T> y(static_cast<T*>(run.y) + first * layer_.dim, length, layer_.dim, stride);
        std::vector<bool> valid(length, true);
        if (run.mask)
          for (std::int64_t l = 0; l < length; ++l) valid[l] = run.mask[first + l * token_step] != 0;
        y = sequence(x, valid);
      }
    });
  }

 private:
  // One sequence X [L, dim] -> Y [L, dim].
  Matrix<T> sequence(const ConstGridRows<T>& x, const std::vector<bool>& valid) const {
    const std::int64_t inner = layer_.inner(), d = layer_.head_dim;
    Matrix<T> n = norm_(x);
    round_to(precision_, n);
    const Matrix<T> qkv = linear(n, qkv_weight_, qkv_bias_);
    Matrix<T> q = qkv.leftCols(inner), k = qkv.middleCols(inner, inner), v = qkv.rightCols(inner);
    if (layer_.rope) {
      rotate(q, *layer_.rope, layer_.heads, d);
      rotate(k, *layer_.rope, layer_.heads, d);
    }
    round_to(precision_, q);
    round_to(precision_, k);
    round_to(precision_, v);

    Matrix<T> o(x.rows(), inner);
    for (std::int64_t h = 0; h < layer_.heads; ++h)
      o.middleCols(h * d, d) =
          attend(q.middleCols(h * d, d), k.middleCols(h * d, d), v.middleCols(h * d, d), valid);
    round_to(precision_, o);

    Matrix<T> y = linear(o, out_weight_, out_bias_);
    if (layer_.residual) y += x;
    round_to(precision_, y);
    return y;
  }

  // One head: softmax(scale Q K^T over the keys a query may see) V, queries in tiles so that memory is linear
  // in L. Keys that are masked are left out, not multiplied by zero: whatever they hold goes nowhere.
  Matrix<T> attend(const Matrix<T>& q, const Matrix<T>& k, Matrix<T> v,
                   const std::vector<bool>& valid) const {
    constexpr Eigen::Index kTile = 64;
    const Eigen::Index length = q.rows();
    for (Eigen::Index key = 0; key < length; ++key)
      if (!valid[key]) v.row(key).setZero();
    Matrix<T> o(length, q.cols());
    for (Eigen::Index first = 0; first < length; first += kTile) {
      const Eigen::Index count = std::min(kTile, length - first);
      Matrix<T> p =
          product<T>(q.middleRows(first, count), k.transpose());  // the scores, then exp(score - maximum)
      Eigen::Matrix<T, Eigen::Dynamic, 1> sums(count);
      for (Eigen::Index i = 0; i < count; ++i) sums(i) = exponentials(p, i, first + i, valid);
      round_to(precision_, p);
      o.middleRows(first, count) = product<T>(p, v);
      for (Eigen::Index i = 0; i < count; ++i) {
        if (sums(i) == 0)  // no valid key
          o.row(first + i).setZero();
        else
          o.row(first + i) /= sums(i);
      }
    }
    return o;
  }

  // Turns row i of the unscaled scores, of the query at `position`, into exp(scale * score - maximum), zero
  // for keys it may not see; returns their sum, 0 when it may see none.
  T exponentials(Matrix<T>& p, Eigen::Index i, Eigen::Index position, const std::vector<bool>& valid) const {
    const auto sees = [&](Eigen::Index key) { return valid[key] && !(layer_.causal && key > position); };
    bool any = false;
    T maximum = 0;
    for (Eigen::Index key = 0; key < p.cols(); ++key) {
      if (!sees(key)) continue;
      p(i, key) *= static_cast<T>(layer_.scale);
      maximum = any ? std::max(maximum, p(i, key)) : p(i, key);
      any = true;
    }
    double sum = 0;
    for (Eigen::Index key = 0; key < p.cols(); ++key) {
      p(i, key) = sees(key) ? std::exp(p(i, key) - maximum) : T(0);
      sum += static_cast<double>(p(i, key));
    }
    return any ? static_cast<T>(sum) : T(0);
  }

  const graph::AxialAttention layer_;
  const Precision precision_;
  const NormOp<T> norm_;
  const Matrix<T> qkv_weight_, out_weight_;
  const Row<T> qkv_bias_, out_bias_;
};

}  // namespace

std::unique_ptr<const Step> axial_attention(const graph::Layer& layer, const weights::LayerWeights& weights,
                                            Precision precision) {
  return make<AxialAttentionStep, graph::AxialAttention>(layer, weights, precision);
}

}  // namespace warpweave::cpu::reference
