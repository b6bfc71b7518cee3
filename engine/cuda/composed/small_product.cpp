#include "cuda/composed/small_product.h"

#include <algorithm>
#include <vector>

#include "cuda/memory.h"

namespace warpweave::cuda {
namespace {

constexpr std::int64_t kMostWeights = std::int64_t{1} << 16;
constexpr std::int64_t kTokens = 128, kColumns = 64, kDepth = 64;  // of a block

std::size_t shared_bytes(std::int64_t k) {  // up to three stages
  return static_cast<std::size_t>(std::min<std::int64_t>((k + kDepth - 1) / kDepth, 3) *
                                  (kTokens + kColumns) * (kDepth * 2 + 16));
}

std::int64_t rounded(std::int64_t count, std::int64_t unit) { return (count + unit - 1) / unit * unit; }

// Rows and k padded with zeros; row 8j + 2c + b of each 32 is column 8c + 2j + b.
std::vector<float> permuted(std::span<const float> weight, std::int64_t n, std::int64_t k) {
  const std::int64_t depth = rounded(k, kDepth);
  std::vector<float> rows(static_cast<std::size_t>(rounded(n, kColumns) * depth), 0.0f);
  for (std::int64_t column = 0; column < n; ++column) {
    const std::int64_t c = column % 32 / 8, j = column % 8 / 2, b = column % 2;
    const std::int64_t row = column / 32 * 32 + 8 * j + 2 * c + b;
    std::copy_n(weight.begin() + column * k, k, rows.begin() + row * depth);
  }
  return rows;
}

class SmallProduct final : public Projection {
 public:
  SmallProduct(const ProjectionShape& shape, std::span<const float> weight, std::span<const float> bias,
               Precision precision, const GpuDevice& device)
      : shape_(shape),
        weight_(upload_operand(permuted(weight, shape.n, shape.k), precision)),
        bias_(upload(bias)),
        kernel_(device.kernels().get(*small_product_kernel(shape, precision))) {
    kernel_.allow(shared_bytes(shape.k));
  }

  std::int64_t scratch_bytes_per_token() const noexcept override { return 0; }
  std::unique_ptr<const BoundProjection> bind(std::int64_t) const override {
    return std::make_unique<Bound>(*this);
  }

 private:
  struct Bound final : BoundProjection {
    explicit Bound(const SmallProduct& projection) : owner(projection) {}
    void enqueue(cudaStream_t stream, const ProjectionRun& run) const override { owner.enqueue(stream, run); }
    const SmallProduct& owner;
  };

  void enqueue(cudaStream_t stream, const ProjectionRun& run) const {
    const std::int64_t across = (shape_.n + kColumns - 1) / kColumns;
    kernel_.launch(stream,
                   {.blocks = (run.tokens + kTokens - 1) / kTokens * across,
                    .threads = 256,
                    .shared_bytes = shared_bytes(shape_.k),
                    .overlap_previous = true},
                   kernels::LinearParams{run.a, weight_.data(), reinterpret_cast<const float*>(bias_.data()),
                                         run.residual, run.y, run.cells, run.tokens, shape_.n, shape_.k});
  }

  ProjectionShape shape_;
  DeviceBuffer weight_, bias_;
  Kernel kernel_;
};

}  // namespace

std::optional<KernelSpec> small_product_kernel(const ProjectionShape& shape, Precision precision) {
  if (precision != Precision::bf16 && precision != Precision::fp16) return std::nullopt;
  if (!shape.own_kernel || shape.n % 8 != 0 || shape.k % 8 != 0 || shape.n * shape.k > kMostWeights)
    return std::nullopt;
  return KernelSpec{"composed/small_product.cuh", "warpweave::kernels::composed::small_product<" +
                                                      device_type(precision) + ", " +
                                                      device_activation(shape.activated, shape.activation) +
                                                      (shape.residual ? ", true>" : ", false>")};
}

std::unique_ptr<const Projection> make_small_product(const ProjectionShape& shape,
                                                     std::span<const float> weight,
                                                     std::span<const float> bias, Precision precision,
                                                     const GpuDevice& device) {
  return std::make_unique<SmallProduct>(shape, weight, bias, precision, device);
}

}  // namespace warpweave::cuda
