// LayerNorm or RMSNorm of every cell.
#include "graph/layers/norm.h"

#include "cpu/reference/cellwise.h"
#include "cpu/reference/steps.h"

namespace warpweave::cpu::reference {
namespace {

template <class T>
class NormStep final : public Step {
 public:
  NormStep(const graph::NormLayer& layer, const weights::LayerWeights& weights, Precision precision)
      : dim_(layer.dim), precision_(precision), norm_(layer.norm, weights) {}

  bool in_place() const noexcept override { return true; }

  void run(const StepRun& run) const override {
    for_cells<T>(run, dim_, dim_, [&](const ConstGridRows<T>& x, GridRows<T>& y) {
      Matrix<T> n = norm_(x);
      round_to(precision_, n);
      y = n;
    });
  }

 private:
  const std::int64_t dim_;
  const Precision precision_;
  const NormOp<T> norm_;
};

}  // namespace

std::unique_ptr<const Step> norm(const graph::Layer& layer, const weights::LayerWeights& weights,
                                 Precision precision) {
  return make<NormStep, graph::NormLayer>(layer, weights, precision);
}

}  // namespace warpweave::cpu::reference
