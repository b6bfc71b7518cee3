// X * residual + act(norm(X) Wup^T + bup) Wdown^T + bdown.
#include "graph/layers/feed_forward.h"

#include "cpu/reference/cellwise.h"
#include "cpu/reference/steps.h"

namespace warpweave::cpu::reference {
namespace {

template <class T>
T activate(graph::Activation activation, T x) {
  switch (activation) {
    case graph::Activation::gelu:
      return x * T(0.5) * (1 + std::erf(x * T(0.70710678118654752440)));
    case graph::Activation::gelu_tanh:
      return x * T(0.5) * (1 + std::tanh(T(0.79788456080286535588) * (x + T(0.044715) * x * x * x)));
    case graph::Activation::relu:
      return x < 0 ? T(0) : x;  // NaN stays NaN
    case graph::Activation::silu:
      return x / (1 + std::exp(-x));
  }
  return x;
}

template <class T>
class FeedForwardStep final : public Step {
 public:
  FeedForwardStep(const graph::FeedForward& layer, const weights::LayerWeights& weights, Precision precision)
      : layer_(layer),
        precision_(precision),
        norm_(layer.norm, weights),
        up_(matrix_of<T>(weights, "up.weight", precision)),
        down_(matrix_of<T>(weights, "down.weight", precision)),
        up_bias_(row_of<T>(weights, "up.bias")),
        down_bias_(row_of<T>(weights, "down.bias")) {}

  bool in_place() const noexcept override { return true; }

  void run(const StepRun& run) const override {
    for_cells<T>(run, layer_.dim, layer_.dim, [&](const ConstGridRows<T>& x, GridRows<T>& y) {
      Matrix<T> n = norm_(x);
      round_to(precision_, n);
      Matrix<T> hidden = linear(n, up_, up_bias_);
      hidden = hidden.unaryExpr([&](T v) { return activate(layer_.activation, v); });
      round_to(precision_, hidden);
      Matrix<T> result = linear(hidden, down_, down_bias_);
      if (layer_.residual) result += x;
      round_to(precision_, result);
      y = result;
    });
  }

 private:
  const graph::FeedForward layer_;
  const Precision precision_;
  const NormOp<T> norm_;
  const Matrix<T> up_, down_;
  const Row<T> up_bias_, down_bias_;
};

}  // namespace

std::unique_ptr<const Step> feed_forward(const graph::Layer& layer, const weights::LayerWeights& weights,
                                         Precision precision) {
  return make<FeedForwardStep, graph::FeedForward>(layer, weights, precision);
}

}  // namespace warpweave::cpu::reference
