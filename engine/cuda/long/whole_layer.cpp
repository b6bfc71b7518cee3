#include "cuda/long/whole_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "cuda/fp16_range.h"
#include "warpweave/tensor.h"

namespace warpweave::cuda::long_sequences {
namespace {

constexpr std::int64_t kLeastLength = 193;  // shorter ones were not measured

static_assert(WholeLayerPlan{128, 4, 2}.shared_bytes() <= kSharedBytes);

std::string boolean(bool value) { return value ? "true" : "false"; }

}  // namespace

std::optional<WholeLayerPlan> whole_layer_plan(const graph::AxialAttention& layer, std::int64_t head_pitch,
                                               const plan::Conditions& conditions) {
  if (conditions.compute_capability != 90 || itemsize(storage_type(conditions.precision)) != 2) return {};
  if (layer.dim != 128 || layer.heads != 4 || head_pitch != WholeLayerPlan::kHead) return {};
  if (layer.causal || !folds_scale(layer, conditions.precision)) return {};
  // With RoPE or without a norm the compiler had spilled registers or serialised wgmma.
  if (layer.rope || layer.norm.kind == graph::NormKind::none) return {};
  return WholeLayerPlan{128, 4, 2};
}

std::optional<WholeLayerPlan> whole_layer_plan_for(WholeLayerPlan plan, std::int64_t length) {
  if (length < kLeastLength || length > plan.longest()) return {};
  plan.tiles = length <= WholeLayerPlan{plan.dim, plan.heads, 1}.longest() ? 1 : 2;
  return plan;
}

bool whole_layer_fills(std::int64_t sequences, int multiprocessors) {
  // A sequence by itself takes a fifth less than its share of the two steps; an idle turn undoes that.
  const std::int64_t turns = (sequences + multiprocessors - 1) / multiprocessors;
  return sequences * 10 >= turns * multiprocessors * 9;
}

KernelSpec whole_layer_kernel(const WholeLayerPlan& plan, const graph::AxialAttention& layer,
                              Precision precision) {
  const std::string scope = "warpweave::kernels::long_sequences::";
  const bool layer_norm = layer.norm.kind == graph::NormKind::layer;
  std::string text = scope + "whole_layer<" + device_type(precision);
  for (const int n : {plan.dim, plan.heads, plan.tiles}) text += ", " + std::to_string(n);
  return {"long/whole_layer.cuh", text + ", " + scope + (layer_norm ? "whole_layer_norm" : "whole_rms_norm") +
                                      ", " + boolean(layer.qkv_bias || layer_norm) + ">"};
}

std::vector<std::byte> pack_whole_layer(const WholeLayerPlan& plan, const FoldedWeights& folded,
                                        Precision precision) {
  constexpr int head = WholeLayerPlan::kHead, columns = WholeLayerPlan::kColumns;
  std::vector<std::byte> blob(static_cast<std::size_t>(plan.heads) * plan.head_bytes());
  for (int h = 0; h < plan.heads; ++h) {
    std::vector<float> factor(columns, 1.0f), added(columns, 0.0f),
        matrix(static_cast<std::size_t>(columns) * plan.dim, 0.0f);
    for (int n = 0; n < columns; ++n) {
      const int part = n / head, channel = n % head;
      const auto from_row = static_cast<std::size_t>((part * plan.heads + h) * head + channel);
      const float* from = folded.qkv.data() + from_row * plan.dim;
      // A lane's accumulators 8 j + 2 c, 8 j + 2 c + 1 go to places 8 c + 2 j and the next of a row of k or
      // v.
      const int row = part * head + (part == 0 ? channel : layout::place_of(channel));
      added[row] = folded.qkv_bias[from_row];
      const int exponent = exponent_taken_out({from, static_cast<std::size_t>(plan.dim)}, precision);
      factor[row] = std::ldexp(1.0f, exponent);
      for (int k = 0; k < plan.dim; ++k)
        matrix[layout::core_index(columns, row, layout::place_of(k))] = std::ldexp(from[k], -exponent);
    }
    std::byte* to = blob.data() + static_cast<std::size_t>(h) * plan.head_bytes();
    std::memcpy(to + WholeLayerPlan::scale_at(), factor.data(), factor.size() * sizeof(float));
    std::memcpy(to + WholeLayerPlan::bias_at(), added.data(), added.size() * sizeof(float));
    const Tensor narrow =
        Tensor::from({static_cast<std::int64_t>(matrix.size())}, matrix).to(storage_type(precision));
    std::memcpy(to + WholeLayerPlan::matrix_at(), narrow.data(), narrow.bytes());
  }
  return blob;
}

WholeLayer::WholeLayer(const WholeLayerPlan& plan, const graph::AxialAttention& layer, Precision precision,
                       const GpuDevice& device)
    : plan_(plan),
      multiprocessors_(device.multiprocessors()),
      kernel_(device.kernels().get(whole_layer_kernel(plan, layer, precision))) {
  kernel_.allow(static_cast<std::size_t>(plan_.shared_bytes()));
}

std::int64_t WholeLayer::blocks(std::int64_t sequences, std::int64_t most_bytes) const noexcept {
  std::int64_t most = multiprocessors_;
  if (most_bytes > 0) most = std::clamp<std::int64_t>(most_bytes / plan_.parked_bytes(), 1, most);
  const std::int64_t turns = (sequences + most - 1) / most;
  return (sequences + turns - 1) / turns;
}

void WholeLayer::enqueue(cudaStream_t stream, std::int64_t blocks,
                         const kernels::long_sequences::WholeLayerParams& params) const {
  kernel_.launch(stream,
                 {.blocks = blocks,
                  .threads = WholeLayerPlan::kThreads,
                  .shared_bytes = static_cast<std::size_t>(plan_.shared_bytes()),
                  .overlap_previous = true},
                 params);
}

}  // namespace warpweave::cuda::long_sequences
