#include "cuda/composed/family.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "cuda/composed/attention.h"
#include "cuda/composed/projection.h"
#include "cuda/composed/small_product.h"
#include "cuda/composed/wide_layer.h"
#include "cuda/reference/family.h"
#include "layout/norm_plan.h"

namespace warpweave::cuda {
namespace {

// Beyond this a token no longer fits in a warp's registers, and the reference's norm (a block per token) is
// used.
constexpr std::int64_t kMostNormChannels = 2048;

layout::NormPlan norm_plan(const NormShape& shape, Precision precision) {
  return {static_cast<int>(shape.dim), static_cast<int>(shape.pitch),
          static_cast<int>(itemsize(storage_type(precision)))};
}

KernelSpec norm_kernel(const NormShape& shape, Precision precision) {
  const std::string in = device_type(precision);
  const std::string out = precision == Precision::tf32 && shape.operand ? "warpweave::kernels::tf32" : in;
  return {"composed/norm.cuh", "warpweave::kernels::composed::norm<" + in + ", " + out + ", " +
                                   device_norm(shape.kind) + ", " + std::to_string(shape.dim) + ", " +
                                   std::to_string(shape.pitch) + ">"};
}

class Norm final : public NormOperation {
 public:
  Norm(const NormShape& shape, Precision precision, const GpuDevice& device, Kernel kernel)
      : device_(device),
        token_bytes_(shape.pitch * static_cast<std::int64_t>(itemsize(storage_type(precision)))),
        tokens_(norm_plan(shape, precision).tokens()),
        most_blocks_(device.multiprocessors() * kernel.resident_blocks(128, 0)),
        kernel_(kernel) {}
  void enqueue(cudaStream_t stream, const kernels::NormParams& params) const override {
    kernels::NormParams p = params;
    p.keep = device_.kept_share(p.tokens * token_bytes_);
    const std::int64_t blocks = std::min<std::int64_t>((p.tokens + tokens_ - 1) / tokens_, most_blocks_);
    kernel_.launch(stream, {.blocks = blocks, .threads = 128, .overlap_previous = true}, p);
  }

 private:
  const GpuDevice& device_;
  std::int64_t token_bytes_;  // of the result
  std::int64_t tokens_;       // of a block at a time
  std::int64_t most_blocks_;  // as many as run at a time; each goes on to further tokens
  Kernel kernel_;
};

double rate(Precision precision) {  // flops per second, to compare with other families
  switch (precision) {
    case Precision::fp32:
      return 3e13;
    case Precision::tf32:
      return 8e13;
    default:
      return 2e14;
  }
}

class Composed final : public Family {
 public:
  explicit Composed(std::string blas_missing)
      : blas_missing_(std::move(blas_missing)), reference_(make_reference_family()) {}

  std::string_view name() const noexcept override { return "composed"; }

  bool needs_blas(const ProjectionShape& shape, Precision precision) const override {
    return !small_product_kernel(shape, precision);
  }

  plan::Claim claim(const plan::LayerProblem& problem, const plan::Conditions& conditions) const override {
    if (!blas_missing_.empty()) return plan::Claim::decline(blas_missing_);
    if (conditions.precision == Precision::tf32 &&
        (problem.input.cells() < 8 || problem.input.channels < 8)) {
      return plan::Claim::decline(
          "tf32 gains nothing on fewer than 8 cells or 8 channels; plain float32 is exact");
    }
    if (const auto* layer = dynamic_cast<const graph::AxialAttention*>(problem.layer)) {
      const std::int64_t head = head_pitch(layer->head_dim, conditions.precision);
      if (head > kMostHeadDim) {
        return plan::Claim::decline("head_dim " + std::to_string(layer->head_dim) + " is larger than " +
                                    std::to_string(kMostHeadDim));
      }
      const AttentionShape shape{layer->heads, head, layer->length(problem.input), layer->causal};
      const std::size_t shared = attention_tiles(shape, conditions.precision)
                                     .shared_bytes(shape, itemsize(storage_type(conditions.precision)));
      if (static_cast<std::int64_t>(shared) > conditions.shared_memory_per_block) {
        return plan::Claim::decline("head_dim " + std::to_string(layer->head_dim) + " needs " +
                                    std::to_string(shared / 1024) +
                                    " KiB of shared memory, more than this GPU has");
      }
    }
    // Launches, the products, and two passes over the grid.
    const double bytes = static_cast<double>(problem.input.cells() * problem.input.channels) *
                         static_cast<double>(itemsize(storage_type(conditions.precision))) * 4;
    return plan::Claim::accept(1e-5 + problem.layer->flops(problem.input) / rate(conditions.precision) +
                               bytes / 3e12);
  }

  std::int64_t token_pitch(std::int64_t channels, Precision precision) const noexcept override {
    const std::int64_t unit = elements_of_16_bytes(precision);
    return (channels + unit - 1) / unit * unit;
  }
  std::int64_t head_pitch(std::int64_t head_dim, Precision precision) const noexcept override {
    const std::int64_t unit = 2 * elements_of_16_bytes(precision);  // k of one tensor-core instruction
    return (head_dim + unit - 1) / unit * unit;
  }

  // In 16 bits, unless weights might leave fp16's range, or the range in which it has all its digits.
  bool folds_scale(double scale, Precision precision) const override {
    const double factor = std::fabs(scale) * std::numbers::log2e;
    return precision == Precision::bf16 ||
           (precision == Precision::fp16 && factor <= 1 && factor >= 1.0 / 64);
  }

  std::vector<KernelSpec> norm_kernels(const NormShape& shape, Precision precision) const override {
    if (shape.pitch > kMostNormChannels) return reference_->norm_kernels(shape, precision);
    return {norm_kernel(shape, precision)};
  }
  std::unique_ptr<const NormOperation> norm(const NormShape& shape, Precision precision,
                                            const GpuDevice& device) const override {
    if (shape.pitch > kMostNormChannels) return reference_->norm(shape, precision, device);
    return std::make_unique<Norm>(shape, precision, device,
                                  device.kernels().get(norm_kernel(shape, precision)));
  }

  std::vector<KernelSpec> attention_kernels(const AttentionShape& shape,
                                            const plan::Conditions& conditions) const override {
    return cuda::attention_kernels(shape, conditions);
  }
  std::unique_ptr<const AttentionOperation> attention(const AttentionShape& shape, Precision precision,
                                                      const GpuDevice& device) const override {
    return make_attention(shape, precision, device);
  }

  bool takes_wide_layer(const WideShape& shape, const plan::Conditions& conditions) const override {
    return cuda::takes_wide_layer(shape, conditions);
  }
  std::vector<KernelSpec> wide_layer_kernels(const WideShape& shape, const AttentionShape* attention,
                                             std::int64_t neighbours, Precision precision) const override {
    return cuda::wide_layer_kernels(shape, attention, neighbours, precision);
  }
  std::unique_ptr<const WideLayer> wide_layer(const WideShape& shape, const WideWeights& weights,
                                              Precision precision, const GpuDevice& device) const override {
    return make_wide_layer(shape, weights, precision, device);
  }

  std::vector<KernelSpec> projection_kernels(const ProjectionShape& shape,
                                             Precision precision) const override {
    return composed_projection_kernels(shape, precision);
  }
  std::unique_ptr<const Projection> projection(const ProjectionShape& shape, std::span<const float> weight,
                                               std::span<const float> bias, Precision precision,
                                               const GpuDevice& device) const override {
    return make_composed_projection(shape, weight, bias, precision, device);
  }

 private:
  std::string blas_missing_;
  std::unique_ptr<const Family> reference_;
};

}  // namespace

std::unique_ptr<const Family> make_composed_family(std::string blas_missing) {
  return std::make_unique<Composed>(std::move(blas_missing));
}

}  // namespace warpweave::cuda
