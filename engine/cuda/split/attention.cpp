#include "cuda/split/attention.h"

#include <optional>
#include <string>
#include <utility>

#include "cuda/composed/attention.h"

namespace warpweave::cuda::split {
namespace {

// Of two parts.
AttentionTiles split_tiles(const AttentionShape& shape) {
  if (shape.head_dim > 64) return {4, 1, 16};
  if (shape.length <= 16) return {1, 1, 16};
  if (shape.length <= 32) return {2, 1, 32};
  return {4, 2, 32};
}

KernelSpec split_kernel(const AttentionShape& shape) {
  const AttentionTiles t = split_tiles(shape);
  return {"split/products.cuh",
          "warpweave::kernels::composed::attention<warpweave::kernels::split::SplitProducts<" +
              std::to_string(shape.head_dim) + ", 2>, " + std::to_string(t.warps) + ", " +
              std::to_string(t.tiles) + ", " + std::to_string(t.keys) + ", false, " +
              (shape.causal ? "true" : "false") + ">"};
}

// On any GPU, with and without a mask.
class AnyAttention final : public AttentionOperation {
 public:
  AnyAttention(const AttentionTiles& tiles, std::size_t shared, Kernel kernel)
      : tiles_(tiles), shared_(shared), kernel_(std::move(kernel)) {
    kernel_.allow(shared_);
  }

  void enqueue(cudaStream_t stream, const kernels::AttentionParams& p) const override {
    const std::int64_t tiles = (p.length + tiles_.queries() - 1) / tiles_.queries();
    kernel_.launch(stream,
                   {.blocks = p.sequences * p.heads * tiles,
                    .threads = tiles_.warps * 32,
                    .shared_bytes = shared_,
                    .overlap_previous = true},
                   p);
  }

 private:
  AttentionTiles tiles_;
  std::size_t shared_;
  Kernel kernel_;
};

// A mask is known only at run time, and the kernel of 9.0 takes none.
class EitherAttention final : public AttentionOperation {
 public:
  EitherAttention(std::unique_ptr<const AttentionOperation> without_mask, AnyAttention with_mask)
      : without_mask_(std::move(without_mask)), with_mask_(std::move(with_mask)) {}
  void enqueue(cudaStream_t stream, const kernels::AttentionParams& p) const override {
    if (p.mask)
      with_mask_.enqueue(stream, p);
    else
      without_mask_->enqueue(stream, p);
  }

 private:
  std::unique_ptr<const AttentionOperation> without_mask_;
  AnyAttention with_mask_;
};

plan::Conditions in_fp16(plan::Conditions conditions) {
  conditions.precision = Precision::fp16;
  return conditions;
}

}  // namespace

std::unique_ptr<const AttentionOperation> make_attention(const AttentionShape& shape, int parts,
                                                         const GpuDevice& device) {
  if (parts == 2) {
    const AttentionTiles t = split_tiles(shape);
    AttentionShape row = shape;
    row.head_dim *= parts;
    return std::make_unique<AnyAttention>(t, t.shared_bytes(row, 2),
                                          device.kernels().get(split_kernel(shape)));
  }
  const AttentionTiles t = cuda::attention_tiles(shape, Precision::fp16);
  AnyAttention any(t, t.shared_bytes(shape, 2),
                   device.kernels().get(attention_kernel(shape, Precision::fp16)));
  const auto plan = long_attention_plan(shape, device.conditions(Precision::fp16));
  if (!plan) return std::make_unique<AnyAttention>(std::move(any));
  return std::make_unique<EitherAttention>(make_long_attention(*plan, shape.causal, Precision::fp16, device),
                                           std::move(any));
}

std::vector<KernelSpec> attention_kernels(const AttentionShape& shape, int parts,
                                          const plan::Conditions& conditions) {
  if (parts == 2) return {split_kernel(shape)};
  return cuda::attention_kernels(shape, in_fp16(conditions));
}

}  // namespace warpweave::cuda::split
