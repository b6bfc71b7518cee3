#include "cuda/composed/attention.h"

namespace warpweave::cuda {
namespace {

bool half_operands(Precision precision) { return itemsize(storage_type(precision)) == 2; }

class Attention final : public AttentionOperation {
 public:
  Attention(const AttentionShape& shape, Precision precision, const GpuDevice& device)
      : tiles_(attention_tiles(shape, precision)),
        shared_(tiles_.shared_bytes(shape, itemsize(storage_type(precision)))),
        kernel_(device.kernels().get(attention_kernel(shape, precision))) {
    kernel_.allow(shared_);
  }

  void enqueue(cudaStream_t stream, const kernels::AttentionParams& params) const override {
    kernels::AttentionParams p = params;
    // The kernel multiplies -infinity by the scale.
    if (p.scale == 0.0f) p.scale = 1e-30f;
    const std::int64_t tiles = (p.length + tiles_.queries() - 1) / tiles_.queries();
    kernel_.launch(
        stream,
        {.blocks = p.sequences * p.heads * tiles, .threads = tiles_.warps * 32, .shared_bytes = shared_}, p);
  }

 private:
  AttentionTiles tiles_;
  std::size_t shared_;
  Kernel kernel_;
};

}  // namespace

AttentionTiles attention_tiles(const AttentionShape& shape, Precision precision) {
  const bool half = half_operands(precision);
  // Wide heads have wide rows and accumulators; three stages of them must fit into 99 KiB.
  if (shape.head_dim > 128)
    return half ? AttentionTiles{shape.length <= 16 ? 1 : 4, 1, 16} : AttentionTiles{2, 1, 8};
  if (shape.length <= 16) return {1, 1, 16};
  if (!half && shape.head_dim > 64) return {4, 1, 16};
  if (shape.length <= 32) return {2, 1, 32};
  if (!half || shape.head_dim > 64) return {4, 1, 32};
  if (shape.length <= 64) return {4, 1, 64};
  return {4, 2, 64, true};
}

KernelSpec attention_kernel(const AttentionShape& shape, Precision precision) {
  const std::string scope = "warpweave::kernels::composed::";
  const std::string head = std::to_string(shape.head_dim);
  const std::string products =
      half_operands(precision)
          ? scope + "HalfProducts<" + device_type(precision) + ", " + head + ">"
          : scope + "FloatProducts<" + head + ", " + (precision == Precision::tf32 ? "true" : "false") + ">";
  const AttentionTiles t = attention_tiles(shape, precision);
  return {"composed/attention.cuh", scope + "attention<" + products + ", " + std::to_string(t.warps) + ", " +
                                        std::to_string(t.tiles) + ", " + std::to_string(t.keys) + ", " +
                                        (t.ahead ? "true, " : "false, ") + (shape.causal ? "true" : "false") +
                                        ">"};
}

std::unique_ptr<const AttentionOperation> make_attention(const AttentionShape& shape, Precision precision,
                                                         const GpuDevice& device) {
  return std::make_unique<Attention>(shape, precision, device);
}

}  // namespace warpweave::cuda
