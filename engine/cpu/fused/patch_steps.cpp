// Between images and grids: patches are gathered to rows, multiplied, and the other way round.
#include <cstring>

#include "cpu/fused/blocks.h"
#include "cpu/fused/packing.h"
#include "cpu/fused/scratch.h"
#include "cpu/fused/steps.h"

namespace warpweave::cpu::fused {
namespace {

// Where the patch of cell `cell` (of the whole batch) starts in the image, and how its lines follow.
struct PatchLayout {
  std::int64_t patch, channels, grid_rows, grid_columns;
  std::int64_t line() const { return patch * channels; }                  // contiguous elements
  std::int64_t pitch() const { return grid_columns * patch * channels; }  // from line to line
  std::int64_t start(std::int64_t cell) const {
    const std::int64_t column = cell % grid_columns,
                       row = cell / grid_columns;  // rows go on through the batch
    return row * patch * pitch() + column * line();
  }
};

class PatchStep : public Step {
 public:
  PatchStep(const Kernels& kernels, std::int64_t patch, std::int64_t channels, Matrix weight,
            Rounding rounding)
      : kernels_(kernels),
        patch_(patch),
        channels_(channels),
        weight_(std::move(weight)),
        rounding_(rounding) {}

  bool in_place() const noexcept final { return false; }
  std::size_t scratch_bytes(const graph::CellShape&, int threads) const noexcept final {
    return slot_bytes() * static_cast<std::size_t>(threads);
  }

 protected:
  std::int64_t pixels() const noexcept { return patch_ * patch_ * channels_; }  // numbers in a patch
  std::size_t slot_bytes() const noexcept {
    Carver carver;
    carver.take<float>(kBlock * pixels());
    return carver.used();
  }
  float* slot(const StepRun& run, int slot) const {
    return reinterpret_cast<float*>(run.scratch + static_cast<std::size_t>(slot) * slot_bytes());
  }

  const Kernels& kernels_;
  std::int64_t patch_, channels_;
  Matrix weight_;
  Rounding rounding_;
};

class PatchEmbedStep final : public PatchStep {
 public:
  using PatchStep::PatchStep;

  void run(const StepRun& run) const override {
    const PackedMatrix weight = weight_.view();
    const PatchLayout layout{patch_, channels_, run.input.rows / patch_, run.input.columns / patch_};
    const std::int64_t dim = weight.outputs, cells = run.batch * layout.grid_rows * layout.grid_columns;
    for_blocks(*run.pool, cells, [&](std::int64_t first, std::int64_t count, int slot_index) {
      float* patches = slot(run, slot_index);
      std::int64_t rows[kBlock];
      for (std::int64_t i = 0; i < count; ++i) {
        rows[i] = i * dim;
        const float* x = static_cast<const float*>(run.x) + layout.start(first + i);
        for (std::int64_t line = 0; line < patch_; ++line)
          std::memcpy(patches + i * pixels() + line * layout.line(), x + line * layout.pitch(),
                      static_cast<std::size_t>(layout.line()) * sizeof(float));
      }
      float* y = static_cast<float*>(run.y) + first * dim;
      kernels_.gemm({.a = patches, .a_stride = pixels(), .b = &weight, .rows = rows, .c = y, .m = count});
      kernels_.round(rounding_, y, count * dim);
    });
  }
};

class PatchUnembedStep final : public PatchStep {
 public:
  using PatchStep::PatchStep;

  void run(const StepRun& run) const override {
    const PackedMatrix weight = weight_.view();
    const PatchLayout layout{patch_, channels_, run.input.rows, run.input.columns};
    const std::int64_t dim = weight.inputs;
    for_blocks(
        *run.pool, run.batch * run.input.cells(),
        [&](std::int64_t first, std::int64_t count, int slot_index) {
          float* patches = slot(run, slot_index);
          std::int64_t rows[kBlock];
          for (std::int64_t i = 0; i < count; ++i) rows[i] = i * pixels();
          const float* x = static_cast<const float*>(run.x) + first * dim;
          kernels_.gemm({.a = x, .a_stride = dim, .b = &weight, .rows = rows, .c = patches, .m = count});
          kernels_.round(rounding_, patches, count * pixels());
          for (std::int64_t i = 0; i < count; ++i) {
            float* y = static_cast<float*>(run.y) + layout.start(first + i);
            for (std::int64_t line = 0; line < patch_; ++line)
              std::memcpy(y + line * layout.pitch(), patches + i * pixels() + line * layout.line(),
                          static_cast<std::size_t>(layout.line()) * sizeof(float));
          }
        });
  }
};

}  // namespace

StepPtr make_step(const Kernels& kernels, const graph::PatchEmbed& layer, const LayerWeights& weights,
                  Rounding r) {
  const std::int64_t inputs = layer.patch * layer.patch * layer.channels;
  return std::make_unique<PatchEmbedStep>(
      kernels, layer.patch, layer.channels,
      Matrix(kernels, layer.dim, weights.find("weight"), inputs, weights.find("bias"), r), r);
}
StepPtr make_step(const Kernels& kernels, const graph::PatchUnembed& layer, const LayerWeights& weights,
                  Rounding r) {
  const std::int64_t outputs = layer.patch * layer.patch * layer.channels;
  return std::make_unique<PatchUnembedStep>(
      kernels, layer.patch, layer.channels,
      Matrix(kernels, outputs, weights.find("weight"), layer.dim, weights.find("bias"), r), r);
}

}  // namespace warpweave::cpu::fused
