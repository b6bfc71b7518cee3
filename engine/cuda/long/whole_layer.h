// A layer in one kernel (kernels/long/whole_layer.cuh): for which layers, with which weights, and its launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cuda/compiler.h"
#include "cuda/device.h"
#include "cuda/long/layer.h"
#include "long/whole_layer_params.h"

namespace warpweave::cuda::long_sequences {

using kernels::long_sequences::WholeLayerPlan;

// Nothing where the kernel does not take the layer. Of sequences of any length, which its weights know
// nothing of.
std::optional<WholeLayerPlan> whole_layer_plan(const graph::AxialAttention& layer, std::int64_t head_pitch,
                                               const plan::Conditions& conditions);
// The same for sequences of this length, or nothing where two steps were measured to be as fast.
std::optional<WholeLayerPlan> whole_layer_plan_for(WholeLayerPlan plan, std::int64_t length);
// Whether a sample's sequences fill the multiprocessors, on each of which one runs at a time. Asked of one
// sample, so that its bits do not depend on the batch.
bool whole_layer_fills(std::int64_t sequences, int multiprocessors);

KernelSpec whole_layer_kernel(const WholeLayerPlan& plan, const graph::AxialAttention& layer,
                              Precision precision);

// `qkv` and `qkv_bias` as fold() makes them, in the order of WholeLayerPlan; in fp16 a power of two is taken
// out of a channel's weights, as in pack_projection().
std::vector<std::byte> pack_whole_layer(const WholeLayerPlan& plan, const FoldedWeights& folded,
                                        Precision precision);

class WholeLayer {
 public:
  WholeLayer(const WholeLayerPlan& plan, const graph::AxialAttention& layer, Precision precision,
             const GpuDevice& device);
  // As many as run at a time, or fewer that take as many turns, or fewer still where `most_bytes` (0: no
  // limit) is not enough for all; at least 1.
  std::int64_t blocks(std::int64_t sequences, std::int64_t most_bytes) const noexcept;
  std::int64_t workspace_bytes(std::int64_t blocks) const noexcept { return blocks * plan_.parked_bytes(); }
  void enqueue(cudaStream_t stream, std::int64_t blocks,
               const kernels::long_sequences::WholeLayerParams& params) const;

 private:
  WholeLayerPlan plan_;
  int multiprocessors_;
  Kernel kernel_;
};

}  // namespace warpweave::cuda::long_sequences
