// Between images and grids: one row of patches at a time.
#include "graph/layers/patch.h"

#include "cpu/reference/matrix.h"
#include "cpu/reference/steps.h"

namespace warpweave::cpu::reference {
namespace {

// A row of patches holds p rows of pixels, each `width` = columns * p * channels elements. In a row of pixels
// the p * channels elements of a patch are contiguous: element e of patch j's pixel row r is at r * width + j
// * p * channels + e.
struct PatchRow {
  std::int64_t patch, channels, columns;

  std::int64_t run() const { return patch * channels; }
  std::int64_t width() const { return columns * run(); }

  template <class T>
  Matrix<T> gather(const T* pixels) const {  // [columns, p * p * channels]
    Matrix<T> m(columns, patch * run());
    for (std::int64_t j = 0; j < columns; ++j)
      for (std::int64_t r = 0; r < patch; ++r)
        m.row(j).segment(r * run(), run()) =
            Eigen::Map<const Row<T>>(pixels + r * width() + j * run(), run());
    return m;
  }
  template <class T>
  void scatter(const Matrix<T>& m, T* pixels) const {
    for (std::int64_t j = 0; j < columns; ++j)
      for (std::int64_t r = 0; r < patch; ++r)
        Eigen::Map<Row<T>>(pixels + r * width() + j * run(), run()) = m.row(j).segment(r * run(), run());
  }
};

template <class T>
class PatchEmbedStep final : public Step {
 public:
  PatchEmbedStep(const graph::PatchEmbed& layer, const weights::LayerWeights& weights, Precision precision)
      : layer_(layer),
        precision_(precision),
        weight_(matrix_of<T>(weights, "weight", precision)),
        bias_(row_of<T>(weights, "bias")) {}

  bool in_place() const noexcept override { return false; }

  void run(const StepRun& run) const override {
    const std::int64_t rows = run.input.rows / layer_.patch, columns = run.input.columns / layer_.patch;
    const PatchRow row{layer_.patch, layer_.channels, columns};
    run.pool->parallel_for(run.batch * rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) {
        const T* pixels = static_cast<const T*>(run.x) + i * layer_.patch * row.width();
        Matrix<T> cells = reference::linear(row.gather(pixels), weight_, bias_);
        round_to(precision_, cells);
        Eigen::Map<Matrix<T>>(static_cast<T*>(run.y) + i * columns * layer_.dim, columns, layer_.dim) = cells;
      }
    });
  }

 private:
  const graph::PatchEmbed layer_;
  const Precision precision_;
  const Matrix<T> weight_;
  const Row<T> bias_;
};

template <class T>
class PatchUnembedStep final : public Step {
 public:
  PatchUnembedStep(const graph::PatchUnembed& layer, const weights::LayerWeights& weights,
                   Precision precision)
      : layer_(layer),
        precision_(precision),
        weight_(matrix_of<T>(weights, "weight", precision)),
        bias_(row_of<T>(weights, "bias")) {}

  bool in_place() const noexcept override { return false; }

  void run(const StepRun& run) const override {
    const std::int64_t rows = run.input.rows, columns = run.input.columns;
    const PatchRow row{layer_.patch, layer_.channels, columns};
    run.pool->parallel_for(run.batch * rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto* cells = static_cast<const T*>(run.x) + i * columns * layer_.dim;
        Matrix<T> pixels =
            reference::linear(Eigen::Map<const Matrix<T>>(cells, columns, layer_.dim), weight_, bias_);
        round_to(precision_, pixels);
        row.scatter(pixels, static_cast<T*>(run.y) + i * layer_.patch * row.width());
      }
    });
  }

 private:
  const graph::PatchUnembed layer_;
  const Precision precision_;
  const Matrix<T> weight_;
  const Row<T> bias_;
};

}  // namespace

std::unique_ptr<const Step> patch_embed(const graph::Layer& layer, const weights::LayerWeights& weights,
                                        Precision precision) {
  return make<PatchEmbedStep, graph::PatchEmbed>(layer, weights, precision);
}

std::unique_ptr<const Step> patch_unembed(const graph::Layer& layer, const weights::LayerWeights& weights,
                                          Precision precision) {
  return make<PatchUnembedStep, graph::PatchUnembed>(layer, weights, precision);
}

}  // namespace warpweave::cpu::reference
