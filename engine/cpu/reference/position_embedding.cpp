// X[b, i, j] + R[i] + C[j].
#include "graph/layers/position_embedding.h"

#include "cpu/reference/matrix.h"
#include "cpu/reference/steps.h"

namespace warpweave::cpu::reference {
namespace {

template <class T>
class PositionEmbeddingStep final : public Step {
 public:
  PositionEmbeddingStep(const graph::PositionEmbedding& layer, const weights::LayerWeights& weights,
                        Precision precision)
      : dim_(layer.dim),
        precision_(precision),
        rows_(matrix_of<T>(weights, "rows", Precision::fp32)),
        columns_(matrix_of<T>(weights, "columns", Precision::fp32)) {}

  bool in_place() const noexcept override { return true; }

  void run(const StepRun& run) const override {
    const std::int64_t rows = run.input.rows, columns = run.input.columns;
    run.pool->parallel_for(run.batch * rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t offset = row * columns * dim_;
        Matrix<T> sum = Eigen::Map<const Matrix<T>>(static_cast<const T*>(run.x) + offset, columns, dim_);
        sum += columns_.topRows(columns);
        sum.rowwise() += rows_.row(row % rows);
        round_to(precision_, sum);
        Eigen::Map<Matrix<T>>(static_cast<T*>(run.y) + offset, columns, dim_) = sum;
      }
    });
  }

 private:
  const std::int64_t dim_;
  const Precision precision_;
  const Matrix<T> rows_, columns_;
};

}  // namespace

std::unique_ptr<const Step> position_embedding(const graph::Layer& layer,
                                               const weights::LayerWeights& weights, Precision precision) {
  return make<PositionEmbeddingStep, graph::PositionEmbedding>(layer, weights, precision);
}

}  // namespace warpweave::cpu::reference
