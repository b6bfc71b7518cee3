#include "cuda/split/short_sequences.h"

#include <algorithm>
#include <string>

#include "cuda/family.h"

namespace warpweave::cuda::split {
namespace {

using graph::AxialAttention;
using graph::Axis;

constexpr std::int64_t kLongest = 64, kThreads = 256;

std::int64_t rounded_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

// As in the kernel, which see.
struct Plan {
  std::int64_t slot, sequences, shared_bytes;

  Plan(const AxialAttention& layer, std::int64_t length, int parts) {
    slot = rounded_up(length, 16);
    sequences = slot < 32 ? 32 / slot : 1;
    const std::int64_t tokens = sequences * slot, inner = layer.heads * head_pitch(layer.head_dim);
    const auto weight_row = [](std::int64_t channels) { return kWeightParts * channels * 2 + 16; };
    const auto row = [&](std::int64_t channels) { return parts * channels * 2 + 16; };
    const std::int64_t depth = rounded_up(layer.dim, kDepth), out_depth = rounded_up(inner, kDepth);
    shared_bytes = 3 * inner * weight_row(depth) + rounded_up(layer.dim, 16) * weight_row(out_depth) +
                   tokens * (row(std::max(depth, out_depth)) + row(3 * inner) + 1);
  }
};

class ShortBound final : public BoundStep {
 public:
  ShortBound(const AxialAttention& layer, const UploadedLayer& weights, int parts, const StepShape& shape,
             const GpuDevice& device)
      : layer_(layer), plan_(layer, layer.length(shape.input), parts), batch_(shape.batch) {
    const std::int64_t length = layer.length(shape.input), columns = shape.input.columns;
    per_sample_ = layer.sequences(shape.input);
    sample_cells_ = shape.input.cells();
    samples_ = std::clamp<std::int64_t>(kMostSequences / per_sample_, 1, batch_);
    rotations_ = upload_rotations(layer, length);
    params_.rotations = reinterpret_cast<const float*>(rotations_.data());
    params_.qkv = weights.qkv.weight();
    params_.out = weights.out.weight();
    params_.cells = layer.axis == Axis::row ? kernels::Sequences{per_sample_, sample_cells_, columns, 1}
                                            : kernels::Sequences{per_sample_, sample_cells_, 1, columns};
    params_.length = static_cast<int>(length);
    params_.eps = static_cast<float>(layer.norm.eps);
    params_.score_scale = weights.score_scale;
    for (const bool mask : {false, true}) {
      kernel_[mask] = device.kernels().get(short_kernel(layer, length, parts, mask));
      kernel_[mask].allow(static_cast<std::size_t>(plan_.shared_bytes));
      most_blocks_[mask] =
          device.multiprocessors() *
          kernel_[mask].resident_blocks(kThreads, static_cast<std::size_t>(plan_.shared_bytes));
    }
    overlap_ = device.conditions(Precision::fp32).compute_capability >= 90;
  }

  std::size_t workspace_bytes() const noexcept override { return 0; }

  void enqueue(const StepRun& run) const override {
    const bool mask = run.mask != nullptr;
    for (std::int64_t first = 0; first < batch_; first += samples_) {
      kernels::split::ShortParams p = params_;
      const std::int64_t cell = first * sample_cells_;
      p.x = static_cast<const float*>(run.x) + cell * layer_.dim;
      p.y = static_cast<float*>(run.y) + cell * layer_.dim;
      p.mask = mask ? run.mask + cell : nullptr;
      p.sequences = static_cast<unsigned>(std::min(samples_, batch_ - first) * per_sample_);
      const std::int64_t blocks = (std::int64_t{p.sequences} + plan_.sequences - 1) / plan_.sequences;
      kernel_[mask].launch(run.stream,
                           {.blocks = std::min(blocks, most_blocks_[mask]),
                            .threads = kThreads,
                            .shared_bytes = static_cast<std::size_t>(plan_.shared_bytes),
                            .overlap_previous = overlap_},
                           p);
    }
  }

 private:
  const AxialAttention& layer_;
  Plan plan_;
  std::int64_t batch_, per_sample_, sample_cells_, samples_;  // samples_: of a launch
  kernels::split::ShortParams params_{};
  DeviceBuffer rotations_;
  Kernel kernel_[2];  // without and with a mask
  std::int64_t most_blocks_[2];
  bool overlap_ = false;
};

}  // namespace

bool takes_short(const AxialAttention& layer, std::int64_t length, int parts, std::int64_t shared_memory) {
  return length <= kLongest && layer.dim <= 128 && Plan(layer, length, parts).shared_bytes <= shared_memory;
}

KernelSpec short_kernel(const AxialAttention& layer, std::int64_t length, int parts, bool mask) {
  const auto flag = [](bool value) { return value ? ", true" : ", false"; };
  return {"split/short_sequences.cuh", "warpweave::kernels::split::short_sequences<" + std::to_string(parts) +
                                           ", " + device_norm(layer.norm.kind) + ", " +
                                           std::to_string(layer.dim) + ", " + std::to_string(layer.heads) +
                                           ", " + std::to_string(head_pitch(layer.head_dim)) + ", " +
                                           std::to_string(Plan(layer, length, parts).slot) + ", " +
                                           std::to_string(layer.rope ? layer.rope->dims : 0) +
                                           flag(layer.causal) + flag(mask) + flag(layer.residual) + ">"};
}

std::unique_ptr<const BoundStep> bind_short(const AxialAttention& layer, const UploadedLayer& weights,
                                            int parts, const StepShape& shape, const GpuDevice& device) {
  return std::make_unique<ShortBound>(layer, weights, parts, shape, device);
}

}  // namespace warpweave::cuda::split
