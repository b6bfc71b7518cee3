#include "cuda/reference/family.h"

#include "cuda/memory.h"
#include "graph/layer.h"

namespace warpweave::cuda {
namespace {

KernelSpec norm_spec(const NormShape& shape, Precision precision) {
  return {"reference/norm.cuh", "warpweave::kernels::reference::norm<" + device_type(precision) + ", " +
                                    device_norm(shape.kind) + ">"};
}

KernelSpec linear_spec(const ProjectionShape& shape, Precision precision) {
  return {"reference/linear.cuh", "warpweave::kernels::reference::linear<" + device_type(precision) + ", " +
                                      device_activation(shape.activated, shape.activation) + ">"};
}

KernelSpec attention_spec(const AttentionShape& shape, Precision precision) {
  return {"reference/attention.cuh", "warpweave::kernels::reference::attention<" + device_type(precision) +
                                         ", " + std::to_string(shape.head_dim) + ", " +
                                         (shape.causal ? "true" : "false") + ">"};
}

class Norm final : public NormOperation {
 public:
  explicit Norm(Kernel kernel) : kernel_(kernel) {}
  void enqueue(cudaStream_t stream, const kernels::NormParams& p) const override {
    kernel_.launch(stream, {.blocks = loop_blocks(p.tokens, 1), .threads = 128}, p);
  }

 private:
  Kernel kernel_;
};

class Attention final : public AttentionOperation {
 public:
  explicit Attention(Kernel kernel) : kernel_(kernel) {}
  void enqueue(cudaStream_t stream, const kernels::AttentionParams& p) const override {
    kernel_.launch(stream, {.blocks = loop_blocks(p.sequences * p.heads * p.length, 4), .threads = 128}, p);
  }

 private:
  Kernel kernel_;
};

class Linear final : public Projection, public BoundProjection {
 public:
  Linear(const ProjectionShape& shape, std::shared_ptr<const DeviceBuffer> weight,
         std::shared_ptr<const DeviceBuffer> bias, Kernel kernel)
      : shape_(shape), weight_(std::move(weight)), bias_(std::move(bias)), kernel_(kernel) {}

  std::int64_t scratch_bytes_per_token() const noexcept override { return 0; }
  std::unique_ptr<const BoundProjection> bind(std::int64_t) const override {
    return std::make_unique<Linear>(*this);
  }

  void enqueue(cudaStream_t stream, const ProjectionRun& run) const override {
    const kernels::LinearParams p{
        run.a,        weight_->data(), reinterpret_cast<const float*>(bias_->data()),
        run.residual, run.y,           run.cells,
        run.tokens,   shape_.n,        shape_.k};
    const std::int64_t tiles = (shape_.n + 15) / 16 * ((run.tokens + 15) / 16);
    kernel_.launch(stream, {.blocks = loop_blocks(tiles, 1), .threads = 256}, p);
  }

 private:
  ProjectionShape shape_;
  std::shared_ptr<const DeviceBuffer> weight_, bias_;
  Kernel kernel_;
};

class Reference final : public Family {
 public:
  std::string_view name() const noexcept override { return "cuda_reference"; }

  plan::Claim claim(const plan::LayerProblem& problem, const plan::Conditions&) const override {
    return plan::Claim::accept(problem.layer->flops(problem.input) / 1e12 + 1e-4);
  }

  std::int64_t token_pitch(std::int64_t channels, Precision) const noexcept override { return channels; }
  std::int64_t head_pitch(std::int64_t head_dim, Precision) const noexcept override { return head_dim; }

  std::vector<KernelSpec> norm_kernels(const NormShape& shape, Precision precision) const override {
    return {norm_spec(shape, precision)};
  }
  std::unique_ptr<const NormOperation> norm(const NormShape& shape, Precision precision,
                                            const GpuDevice& device) const override {
    return std::make_unique<Norm>(device.kernels().get(norm_spec(shape, precision)));
  }

  std::vector<KernelSpec> attention_kernels(const AttentionShape& shape,
                                            const plan::Conditions& conditions) const override {
    return {attention_spec(shape, conditions.precision)};
  }
  std::unique_ptr<const AttentionOperation> attention(const AttentionShape& shape, Precision precision,
                                                      const GpuDevice& device) const override {
    return std::make_unique<Attention>(device.kernels().get(attention_spec(shape, precision)));
  }

  std::vector<KernelSpec> projection_kernels(const ProjectionShape& shape,
                                             Precision precision) const override {
    return {linear_spec(shape, precision)};
  }
  std::unique_ptr<const Projection> projection(const ProjectionShape& shape, std::span<const float> weight,
                                               std::span<const float> bias, Precision precision,
                                               const GpuDevice& device) const override {
    // Plain fp32 arithmetic serves tf32 too, so its operands stay as they are.
    const Precision operands = precision == Precision::tf32 ? Precision::fp32 : precision;
    return std::make_unique<Linear>(shape, std::make_shared<DeviceBuffer>(upload_operand(weight, operands)),
                                    std::make_shared<DeviceBuffer>(upload(bias)),
                                    device.kernels().get(linear_spec(shape, precision)));
  }
};

}  // namespace

std::unique_ptr<const Family> make_reference_family() { return std::make_unique<Reference>(); }

}  // namespace warpweave::cuda
