#include "cuda/split/short_sequences.h"

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/family.h"

namespace warpweave::cuda::split {
namespace {

using graph::AxialAttention;
using graph::Axis;

constexpr std::int64_t kLongest = 64, kThreads = 256;

std::int64_t rounded_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

constexpr std::int64_t kLongestOfWarp = 32;
constexpr std::int64_t kFewSequences = 3;  // a multiprocessor, below which the kernel for latency is faster

std::int64_t inner_of(const AxialAttention& layer) { return layer.heads * head_pitch(layer.head_dim); }

// Sequences of a block, as in kernels/split/short_sequences.cuh, which see.
struct BlockPlan {
  std::int64_t slot, sequences, shared_bytes;

  BlockPlan(const AxialAttention& layer, std::int64_t length, int parts) {
    slot = rounded_up(length, 16);
    sequences = slot < 32 ? 32 / slot : 1;
    const std::int64_t tokens = sequences * slot, inner = inner_of(layer);
    const auto weight_row = [](std::int64_t channels) { return kWeightParts * channels * 2 + 16; };
    const auto row = [&](std::int64_t channels) { return parts * channels * 2 + 16; };
    const std::int64_t depth = rounded_up(layer.dim, kDepth), out_depth = rounded_up(inner, kDepth);
    shared_bytes = 3 * inner * weight_row(depth) + rounded_up(layer.dim, 16) * weight_row(out_depth) +
                   tokens * (row(std::max(depth, out_depth)) + row(3 * inner) + 1);
  }
};

// A sequence of a warp, as in kernels/split/warp_kernels.cuh.
struct WarpPlan {
  static constexpr std::int64_t kManyWarps = 8;  // as registers and shared memory allow
  std::int64_t slot, many_bytes, few_bytes;
  bool keep;  // x, beside the heads' results

  WarpPlan(const AxialAttention& layer, std::int64_t length, int parts) {
    slot = rounded_up(length, 16);
    const std::int64_t inner = inner_of(layer);
    const std::int64_t weights = parts * 2 * 4 * inner * layer.dim + 3 * inner * 8 + layer.dim * 20;
    const std::int64_t results = slot * inner * parts * 2, tokens = slot * layer.dim * parts * 2;
    const std::int64_t x = slot * layer.dim * 4;
    keep = parts == 1;
    many_bytes = weights + kManyWarps * (keep ? 2 * x + results : 2 * std::max(x, results));
    few_bytes = weights + tokens + results + 16;
  }
  static bool fits(const AxialAttention& layer, std::int64_t length, int parts, std::int64_t shared_memory) {
    return length <= kLongestOfWarp && warp_takes(layer) &&
           WarpPlan(layer, length, parts).many_bytes <= shared_memory;
  }
};

// One way to run a layer on short sequences.
struct Form {
  KernelSpec kernel;
  std::int64_t sequences, threads, shared_bytes;  // of a block
  bool persistent;
};

// One, or the forms for many and for few sequences, which give the same bits.
std::vector<Form> forms(const AxialAttention& layer, std::int64_t length, int parts, bool mask,
                        std::int64_t shared_memory) {
  const std::string scope = "warpweave::kernels::split::";
  const auto text = [](std::int64_t value) { return std::to_string(value); };
  const auto flag = [](bool value) { return value ? ", true" : ", false"; };
  const auto layer_text = [&](std::int64_t slot) {
    return text(parts) + ", " + device_norm(layer.norm.kind) + ", " + text(layer.dim) + ", " +
           text(layer.heads) + ", " + text(head_pitch(layer.head_dim)) + ", " + text(slot) + ", " +
           text(layer.rope ? layer.rope->dims : 0) + flag(layer.causal) + flag(mask) + flag(layer.residual) +
           ">";
  };
  if (!WarpPlan::fits(layer, length, parts, shared_memory)) {
    const BlockPlan plan(layer, length, parts);
    return {{{"split/short_sequences.cuh", scope + "short_sequences<" + layer_text(plan.slot)},
             plan.sequences,
             kThreads,
             plan.shared_bytes,
             true}};
  }
  const WarpPlan plan(layer, length, parts);
  const std::string warp_layer = "<" + scope + "WarpLayer<" + layer_text(plan.slot) + ", ";
  return {{{"split/warp_kernels.cuh",
            scope + "many_sequences" + warp_layer + text(WarpPlan::kManyWarps) + flag(plan.keep) + ">"},
           1,  // fewer than blocks have warps are spread over as many blocks
           WarpPlan::kManyWarps * 32,
           plan.many_bytes,
           true},
          {{"split/warp_kernels.cuh",
            scope + "few_sequences" + warp_layer.substr(0, warp_layer.size() - 2) + ">"},
           1,
           layer.heads * 32,
           plan.few_bytes,
           false}};
}

// Samples that a launch takes.
std::int64_t samples_of_launch(std::int64_t batch, std::int64_t per_sample) {
  return std::clamp<std::int64_t>(kMostSequences / per_sample, 1, batch);
}

// Of forms().
const Form& form_for(const std::vector<Form>& list, std::int64_t sequences, int multiprocessors) {
  return sequences < kFewSequences * multiprocessors ? list.back() : list.front();
}

class ShortBound final : public BoundStep {
 public:
  ShortBound(const AxialAttention& layer, const UploadedLayer& weights, int parts, const StepShape& shape,
             const GpuDevice& device)
      : layer_(layer), batch_(shape.batch) {
    const std::int64_t length = layer.length(shape.input), columns = shape.input.columns;
    const plan::Conditions conditions = device.conditions(Precision::fp32);
    per_sample_ = layer.sequences(shape.input);
    sample_cells_ = shape.input.cells();
    samples_ = samples_of_launch(batch_, per_sample_);
    rotations_ = upload_rotations(layer, length);
    params_.rotations = reinterpret_cast<const float*>(rotations_.data());
    params_.qkv = weights.qkv.weight();
    params_.out = weights.out.weight();
    params_.layer = weights.warp.data();
    params_.cells = layer.axis == Axis::row ? kernels::Sequences{per_sample_, sample_cells_, columns, 1}
                                            : kernels::Sequences{per_sample_, sample_cells_, 1, columns};
    params_.length = static_cast<int>(length);
    params_.eps = static_cast<float>(layer.norm.eps);
    params_.score_scale = WarpPlan::fits(layer, length, parts, conditions.shared_memory_per_block)
                              ? weights.warp_score_scale
                              : weights.score_scale;
    for (const bool mask : {false, true}) {
      form_[mask] = form_for(forms(layer, length, parts, mask, conditions.shared_memory_per_block),
                             samples_ * per_sample_, device.multiprocessors());
      const auto shared = static_cast<std::size_t>(form_[mask].shared_bytes);
      kernel_[mask] = device.kernels().get(form_[mask].kernel);
      kernel_[mask].allow(shared);
      most_blocks_[mask] = form_[mask].persistent
                               ? device.multiprocessors() * kernel_[mask].resident_blocks(
                                                                static_cast<int>(form_[mask].threads), shared)
                               : kMostSequences;
    }
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
      const Form& form = form_[mask];
      const std::int64_t blocks = (std::int64_t{p.sequences} + form.sequences - 1) / form.sequences;
      kernel_[mask].launch(run.stream,
                           {.blocks = std::min(blocks, most_blocks_[mask]),
                            .threads = static_cast<int>(form.threads),
                            .shared_bytes = static_cast<std::size_t>(form.shared_bytes),
                            .overlap_previous = true},
                           p);
    }
  }

 private:
  const AxialAttention& layer_;
  std::int64_t batch_, per_sample_, sample_cells_, samples_;  // samples_: of a launch
  kernels::split::ShortParams params_{};
  DeviceBuffer rotations_;
  Form form_[2];  // without and with a mask
  Kernel kernel_[2];
  std::int64_t most_blocks_[2];
};

}  // namespace

bool takes_short(const AxialAttention& layer, std::int64_t length, int parts, std::int64_t shared_memory) {
  return length <= kLongest && layer.dim <= 128 &&
         BlockPlan(layer, length, parts).shared_bytes <= shared_memory;
}

std::vector<KernelSpec> short_kernels(const AxialAttention& layer, std::int64_t length, int parts,
                                      std::int64_t shared_memory) {
  std::vector<KernelSpec> list;
  for (const bool mask : {false, true}) {
    for (const Form& form : forms(layer, length, parts, mask, shared_memory)) list.push_back(form.kernel);
  }
  return list;
}

std::vector<KernelSpec> short_kernels_of_session(const AxialAttention& layer, const graph::CellShape& sample,
                                                 int parts, std::int64_t shared_memory,
                                                 const SessionSize& size) {
  const std::int64_t per_sample = layer.sequences(sample);
  const std::int64_t sequences = samples_of_launch(size.batch, per_sample) * per_sample;
  std::vector<KernelSpec> list;
  for (const bool mask : {false, true})
    list.push_back(form_for(forms(layer, layer.length(sample), parts, mask, shared_memory), sequences,
                            size.multiprocessors)
                       .kernel);
  return list;
}

std::unique_ptr<const BoundStep> bind_short(const AxialAttention& layer, const UploadedLayer& weights,
                                            int parts, const StepShape& shape, const GpuDevice& device) {
  return std::make_unique<ShortBound>(layer, weights, parts, shape, device);
}

}  // namespace warpweave::cuda::split
