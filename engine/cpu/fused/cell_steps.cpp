// Layers that treat every cell by itself: feed_forward, norm, linear, position_embedding.
#include "cpu/fused/blocks.h"
#include "cpu/fused/packing.h"
#include "cpu/fused/scratch.h"
#include "cpu/fused/steps.h"

namespace warpweave::cpu::fused {
namespace {

const float* input(const StepRun& run) { return static_cast<const float*>(run.x); }
float* output(const StepRun& run) { return static_cast<float*>(run.y); }

// Where kBlock rows of `stride` elements start.
struct Rows {
  explicit Rows(std::int64_t stride) {
    for (std::int64_t i = 0; i < kBlock; ++i) at[i] = i * stride;
  }
  std::int64_t at[kBlock];
};

class FeedForwardStep final : public Step {
 public:
  FeedForwardStep(const Kernels& kernels, const graph::FeedForward& layer, const LayerWeights& weights,
                  Rounding rounding)
      : kernels_(kernels),
        layer_(layer),
        rounding_(rounding),
        norm_(layer.norm, layer.dim, weights),
        up_(kernels, layer.hidden, weights.find("up.weight"), layer.dim, weights.find("up.bias"), rounding),
        down_(kernels, layer.dim, weights.find("down.weight"), layer.hidden, weights.find("down.bias"),
              rounding) {
    up_.then(down_);
    down_.then(up_);
  }

  bool in_place() const noexcept override { return true; }

  std::size_t scratch_bytes(const graph::CellShape&, int threads) const noexcept override {
    return carve(nullptr).bytes * static_cast<std::size_t>(threads);
  }

  void run(const StepRun& run) const override {
    const Rows cells(layer_.dim), hidden(layer_.hidden);
    const PackedMatrix up = up_.view(), down = down_.view();
    const std::size_t bytes = carve(nullptr).bytes;
    for_blocks(
        *run.pool, run.batch * run.input.cells(), [&](std::int64_t first, std::int64_t count, int slot) {
          const Slot s = carve(run.scratch + static_cast<std::size_t>(slot) * bytes);
          const float* x = input(run) + first * layer_.dim;
          float* y = output(run) + first * layer_.dim;

          NormRows norm = norm_.rows();
          norm.x = x, norm.rows = cells.at, norm.out = s.normed, norm.out_rows = cells.at, norm.m = count;
          kernels_.norm(norm);
          kernels_.round(rounding_, s.normed, count * layer_.dim);

          kernels_.gemm({.a = s.normed,
                         .a_stride = layer_.dim,
                         .b = &up,
                         .rows = hidden.at,
                         .c = s.hidden,
                         .m = count});
          kernels_.activate(activation(), s.hidden, count * layer_.hidden);
          kernels_.round(rounding_, s.hidden, count * layer_.hidden);

          kernels_.gemm({.a = s.hidden,
                         .a_stride = layer_.hidden,
                         .b = &down,
                         .rows = cells.at,
                         .c = y,
                         .residual = layer_.residual ? x : nullptr,
                         .m = count});
          kernels_.round(rounding_, y, count * layer_.dim);
        });
  }

 private:
  struct Slot {
    float *normed, *hidden;
    std::size_t bytes;
  };
  Slot carve(std::byte* base) const noexcept {
    Carver carver(base);
    Slot slot{};
    slot.normed = carver.take<float>(kBlock * layer_.dim);
    slot.hidden = carver.take<float>(kBlock * layer_.hidden);
    slot.bytes = carver.used();
    return slot;
  }
  ActivationType activation() const noexcept {
    switch (layer_.activation) {
      case graph::Activation::gelu:
        return ActivationType::gelu;
      case graph::Activation::gelu_tanh:
        return ActivationType::gelu_tanh;
      case graph::Activation::relu:
        return ActivationType::relu;
      case graph::Activation::silu:
        return ActivationType::silu;
    }
    return ActivationType::gelu;
  }

  const Kernels& kernels_;
  graph::FeedForward layer_;
  Rounding rounding_;
  NormWeights norm_;
  Matrix up_, down_;
};

class NormStep final : public Step {
 public:
  NormStep(const Kernels& kernels, const graph::NormLayer& layer, const LayerWeights& weights,
           Rounding rounding)
      : kernels_(kernels), dim_(layer.dim), rounding_(rounding), norm_(layer.norm, layer.dim, weights) {}

  bool in_place() const noexcept override { return true; }

  void run(const StepRun& run) const override {
    const Rows cells(dim_);
    for_blocks(*run.pool, run.batch * run.input.cells(), [&](std::int64_t first, std::int64_t count, int) {
      NormRows norm = norm_.rows();
      norm.x = input(run) + first * dim_, norm.rows = cells.at, norm.m = count;
      norm.out = output(run) + first * dim_, norm.out_rows = cells.at;
      kernels_.norm(norm);
      kernels_.round(rounding_, norm.out, count * dim_);
    });
  }

 private:
  const Kernels& kernels_;
  std::int64_t dim_;
  Rounding rounding_;
  NormWeights norm_;
};

class LinearStep final : public Step {
 public:
  LinearStep(const Kernels& kernels, const graph::Linear& layer, const LayerWeights& weights,
             Rounding rounding)
      : kernels_(kernels),
        dim_(layer.dim),
        out_(layer.out),
        rounding_(rounding),
        weight_(kernels, layer.out, weights.find("weight"), layer.dim, weights.find("bias"), rounding) {
    weight_.then(weight_);
  }

  bool in_place() const noexcept override { return false; }

  void run(const StepRun& run) const override {
    const Rows rows(out_);
    const PackedMatrix weight = weight_.view();
    for_blocks(*run.pool, run.batch * run.input.cells(), [&](std::int64_t first, std::int64_t count, int) {
      float* y = output(run) + first * out_;
      kernels_.gemm({.a = input(run) + first * dim_,
                     .a_stride = dim_,
                     .b = &weight,
                     .rows = rows.at,
                     .c = y,
                     .m = count});
      kernels_.round(rounding_, y, count * out_);
    });
  }

 private:
  const Kernels& kernels_;
  std::int64_t dim_, out_;
  Rounding rounding_;
  Matrix weight_;
};

class PositionEmbeddingStep final : public Step {
 public:
  PositionEmbeddingStep(const Kernels& kernels, const graph::PositionEmbedding& layer,
                        const LayerWeights& weights, Rounding rounding)
      : kernels_(kernels), dim_(layer.dim), rounding_(rounding) {
    const auto copy = [&](const char* name, std::int64_t n) {
      return Tensor::from({n * dim_}, {weights.find(name), static_cast<std::size_t>(n * dim_)});
    };
    rows_ = copy("rows", layer.rows);
    columns_ = copy("columns", layer.columns);
  }

  bool in_place() const noexcept override { return true; }

  void run(const StepRun& run) const override {
    const std::int64_t width = run.input.columns * dim_;
    const auto* rows = static_cast<const float*>(rows_.data());
    const auto* columns = static_cast<const float*>(columns_.data());
    run.pool->parallel_for(run.batch * run.input.rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        float* y = output(run) + row * width;
        kernels_.add(input(run) + row * width, columns, y, width);
        for (std::int64_t c = 0; c < width; c += dim_)
          kernels_.add(y + c, rows + row % run.input.rows * dim_, y + c, dim_);
        kernels_.round(rounding_, y, width);
      }
    });
  }

 private:
  const Kernels& kernels_;
  std::int64_t dim_;
  Rounding rounding_;
  Tensor rows_, columns_;
};

}  // namespace

StepPtr make_step(const Kernels& kernels, const graph::FeedForward& layer, const LayerWeights& weights,
                  Rounding r) {
  return std::make_unique<FeedForwardStep>(kernels, layer, weights, r);
}
StepPtr make_step(const Kernels& kernels, const graph::NormLayer& layer, const LayerWeights& weights,
                  Rounding r) {
  return std::make_unique<NormStep>(kernels, layer, weights, r);
}
StepPtr make_step(const Kernels& kernels, const graph::Linear& layer, const LayerWeights& weights,
                  Rounding r) {
  return std::make_unique<LinearStep>(kernels, layer, weights, r);
}
StepPtr make_step(const Kernels& kernels, const graph::PositionEmbedding& layer, const LayerWeights& weights,
                  Rounding r) {
  return std::make_unique<PositionEmbeddingStep>(kernels, layer, weights, r);
}

}  // namespace warpweave::cpu::fused
