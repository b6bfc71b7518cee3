#include "cuda/composed/projection.h"

#include <algorithm>

#include "cuda/blas.h"
#include "cuda/composed/small_product.h"
#include "cuda/layers/layers.h"
#include "cuda/memory.h"
#include "warpweave/error.h"

namespace warpweave::cuda {

std::int64_t elements_of_16_bytes(Precision precision) {
  return 16 / static_cast<std::int64_t>(itemsize(storage_type(precision)));
}

namespace {

bool own_activation(const ProjectionShape& shape) {
  return shape.activated && shape.activation != graph::Activation::relu;
}

// Whether the library writes the result where it belongs.
bool direct(const ProjectionShape& shape, Precision precision) {
  return shape.n % elements_of_16_bytes(precision) == 0;
}

KernelSpec activation_kernel(const ProjectionShape& shape, Precision precision) {
  // In tf32 the result is the operand of the next product, so it is rounded here.
  const std::string type = precision == Precision::tf32 ? "warpweave::kernels::tf32" : device_type(precision);
  return elementwise_kernel("activate_all", type + ", " + device_activation(true, shape.activation));
}

KernelSpec finish_kernel(Precision precision) { return elementwise_kernel("finish", device_type(precision)); }

class BlasProjection final : public Projection {
 public:
  BlasProjection(const ProjectionShape& shape, std::span<const float> weight, std::span<const float> bias,
                 Precision precision, const GpuDevice& device)
      : shape_(shape), precision_(precision), device_(device), direct_(direct(shape, precision)) {
    if (direct_) {
      pitch_ = shape.n;
      weight_ = upload_operand(weight, precision);
      // The library wants the bias in the result's type.
      const Precision stored = precision == Precision::tf32 ? Precision::fp32 : precision;
      bias_ = upload_operand(bias, stored);
    } else {
      if (shape.activated) throw Error(ErrorCode::internal, "an activated projection has padded outputs");
      pitch_ = (shape.n + 15) / 16 * 16;
      weight_ = upload_operand(padded(weight.data(), shape.n, shape.k, pitch_, shape.k), precision);
      bias_ = upload(bias);
      finish_ = device.kernels().get(finish_kernel(precision));
    }
    if (own_activation(shape)) activate_ = device.kernels().get(activation_kernel(shape, precision));
  }

  std::int64_t scratch_bytes_per_token() const noexcept override { return direct_ ? 0 : pitch_ * 4; }

  std::unique_ptr<const BoundProjection> bind(std::int64_t tokens_of_sample) const override {
    ProductSpec spec;
    spec.n = pitch_;
    spec.k = shape_.k;
    spec.precision = precision_;
    spec.float_result = !direct_;
    spec.relu = shape_.activated && shape_.activation == graph::Activation::relu;
    spec.residual = direct_ && shape_.residual;
    spec.weight = weight_.data();
    spec.bias = direct_ && bias_.bytes() ? bias_.data() : nullptr;
    spec.sample_tokens = tokens_of_sample;
    return std::make_unique<Bound>(*this, device_.blas()->product(spec));
  }

 private:
  class Bound final : public BoundProjection {
   public:
    Bound(const BlasProjection& owner, std::unique_ptr<const Product> product)
        : owner_(owner), product_(std::move(product)) {}

    void enqueue(cudaStream_t stream, const ProjectionRun& run) const override {
      const auto& [first, columns, pitch] = run.cells;
      if (!owner_.direct_) {
        product_->enqueue(stream, {.a = run.a, .y = run.scratch, .tokens = run.tokens});
        owner_.finish_.launch(
            stream, {.blocks = loop_blocks(run.tokens * owner_.shape_.n, 256), .threads = 256},
            kernels::FinishParams{reinterpret_cast<const float*>(run.scratch),
                                  reinterpret_cast<const float*>(owner_.bias_.data()), run.residual, run.y,
                                  run.cells, run.tokens, owner_.shape_.n, owner_.pitch_});
        return;
      }
      const std::int64_t offset =
          first * owner_.shape_.n * static_cast<std::int64_t>(itemsize(storage_type(owner_.precision_)));
      auto* y = static_cast<std::byte*>(run.y) + offset;
      product_->enqueue(stream, in_runs(run.a, y, run.tokens, columns, pitch));
      if (own_activation(owner_.shape_)) {
        const std::int64_t count = run.tokens * owner_.shape_.n;
        owner_.activate_.launch(stream, {.blocks = loop_blocks(count, 256), .threads = 256},
                                kernels::ActivateParams{y, count});
      }
    }

   private:
    // A band of a grid's rows is one run of tokens; a band of columns is a run for each row or, where it is
    // higher than wide, for each column.
    static ProductRun in_runs(const void* a, void* y, std::int64_t tokens, std::int64_t columns,
                              std::int64_t pitch) {
      const std::int64_t rows = tokens / columns;
      if (columns == pitch || rows <= 1) return {.a = a, .y = y, .tokens = tokens};
      if (columns >= rows)
        return {
            .a = a, .y = y, .tokens = columns, .runs = rows, .a_pitch = {1, columns}, .y_pitch = {1, pitch}};
      return {
          .a = a, .y = y, .tokens = rows, .runs = columns, .a_pitch = {columns, 1}, .y_pitch = {pitch, 1}};
    }

    const BlasProjection& owner_;
    std::unique_ptr<const Product> product_;
  };

  ProjectionShape shape_;
  Precision precision_;
  const GpuDevice& device_;
  bool direct_;
  std::int64_t pitch_ = 0;  // outputs of the product
  DeviceBuffer weight_, bias_;
  Kernel finish_, activate_;
};

}  // namespace

std::vector<KernelSpec> composed_projection_kernels(const ProjectionShape& shape, Precision precision) {
  if (const auto small = small_product_kernel(shape, precision)) return {*small};
  std::vector<KernelSpec> list;
  if (!direct(shape, precision)) list.push_back(finish_kernel(precision));
  if (own_activation(shape)) list.push_back(activation_kernel(shape, precision));
  return list;
}

std::unique_ptr<const Projection> make_composed_projection(const ProjectionShape& shape,
                                                           std::span<const float> weight,
                                                           std::span<const float> bias, Precision precision,
                                                           const GpuDevice& device) {
  if (small_product_kernel(shape, precision))
    return make_small_product(shape, weight, bias, precision, device);
  return std::make_unique<BlasProjection>(shape, weight, bias, precision, device);
}

}  // namespace warpweave::cuda
