// X W^T + b of every cell.
#include "graph/layers/linear.h"

#include "cpu/reference/cellwise.h"
#include "cpu/reference/steps.h"

namespace warpweave::cpu::reference {
namespace {

template <class T>
class LinearStep final : public Step {
 public:
  LinearStep(const graph::Linear& layer, const weights::LayerWeights& weights, Precision precision)
      : layer_(layer),
        precision_(precision),
        weight_(matrix_of<T>(weights, "weight", precision)),
        bias_(row_of<T>(weights, "bias")) {}

  bool in_place() const noexcept override { return false; }

  void run(const StepRun& run) const override {
    for_cells<T>(run, layer_.dim, layer_.out, [&](const ConstGridRows<T>& x, GridRows<T>& y) {
      Matrix<T> result = reference::linear(x, weight_, bias_);
      round_to(precision_, result);
      y = result;
    });
  }

 private:
  const graph::Linear layer_;
  const Precision precision_;
  const Matrix<T> weight_;
  const Row<T> bias_;
};

}  // namespace

std::unique_ptr<const Step> linear(const graph::Layer& layer, const weights::LayerWeights& weights,
                                   Precision precision) {
  return make<LinearStep, graph::Linear>(layer, weights, precision);
}

}  // namespace warpweave::cpu::reference
