#include "cuda/long/projection.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "cuda/family.h"
#include "cuda/fp16_range.h"
#include "warpweave/tensor.h"

namespace warpweave::cuda::long_sequences {

layout::ProjectPlan plan_of(const ProjectionShape& s) {
  layout::ProjectPlan plan{};
  plan.k = s.k, plan.n = s.n;
  // A lane keeps k / 4 registers of this tile's tokens and k / 4 of the next one's beside chunk / 2 of
  // accumulators (and chunk / 4 of the residual): three warpgroups have 168 registers a lane, two 240. Two
  // are enough, and a little faster, where few bytes come in for the many that leave.
  const bool wide = plan.k_width() > 128, middling = !wide && plan.k_width() > 64;
  plan.groups = wide || (middling && s.qkv) ? 2 : 3;
  const int most = (wide && s.residual) || (middling && !s.qkv) ? 64 : 128;
  for (int slices = 1;; ++slices) {
    const int rows = (s.n + slices - 1) / slices, chunks = (rows + most - 1) / most;
    plan.chunk = layout::round_up((rows + chunks - 1) / chunks, 32);
    plan.slice = plan.chunk * chunks;
    if (plan.shared_bytes() <= kSharedBytes) return plan;
  }
}

KernelSpec projection_kernel(const ProjectionShape& s, const layout::ProjectPlan& plan, Precision precision) {
  const std::string scope = "warpweave::kernels::long_sequences::";
  std::string flags;
  const auto flag = [&](const char* name, bool on) {
    if (on) flags += (flags.empty() ? "" : "|") + scope + name;
  };
  flag("from_grid", s.qkv);
  flag("scaled", precision == Precision::fp16);
  flag("biased", s.biased);
  flag("with_residual", s.residual);
  flag("with_mask", s.masked);
  flag("with_rope", s.rope_head > 0);
  if (flags.empty()) flags = "0";
  const char* norm = s.norm == graph::NormKind::layer ? "layer_norm"
                     : s.norm == graph::NormKind::rms ? "rms_norm"
                                                      : "no_norm";
  std::string text = scope + "project<" + device_type(precision);
  for (const int n : {plan.k, plan.n, plan.slice, plan.chunk, plan.groups}) text += ", " + std::to_string(n);
  return {"long/project.cuh",
          text + ", " + scope + norm + ", " + flags + ", " + std::to_string(s.rope_head) + ">"};
}

void centre_rows(std::span<float> weight, int k) {
  for (std::size_t row = 0; row < weight.size(); row += static_cast<std::size_t>(k)) {
    double mean = 0;
    for (int i = 0; i < k; ++i) mean += weight[row + i];
    mean /= k;
    for (int i = 0; i < k; ++i) weight[row + i] = static_cast<float>(weight[row + i] - mean);
  }
}

std::vector<std::byte> pack_projection(const layout::ProjectPlan& plan, std::span<const float> weight,
                                       std::span<const float> bias, Precision precision) {
  const auto per_slice = static_cast<std::size_t>(plan.slice) * plan.k_width();
  std::vector<std::byte> blob(static_cast<std::size_t>(plan.packed_bytes()));
  for (int slice = 0; slice < plan.slices(); ++slice) {
    std::vector<float> factor(plan.slice, 1.0f), added(plan.slice, 0.0f), matrix(per_slice, 0.0f);
    for (int row = 0; row < plan.slice && slice * plan.slice + row < plan.n; ++row) {
      const int n = slice * plan.slice + row;
      const float* from = weight.data() + static_cast<std::size_t>(n) * plan.k;
      if (!bias.empty()) added[row] = bias[n];
      const int exponent = exponent_taken_out({from, static_cast<std::size_t>(plan.k)}, precision);
      factor[row] = std::ldexp(1.0f, exponent);
      for (int k = 0; k < plan.k; ++k)
        matrix[layout::core_index(plan.slice, layout::place_of(row), layout::place_of(k))] =
            std::ldexp(from[k], -exponent);
    }
    std::byte* to = blob.data() + static_cast<std::size_t>(slice) * plan.slice_bytes();
    std::memcpy(to + plan.scale(), factor.data(), factor.size() * sizeof(float));
    std::memcpy(to + plan.bias(), added.data(), added.size() * sizeof(float));
    const Tensor narrow =
        Tensor::from({static_cast<std::int64_t>(per_slice)}, matrix).to(storage_type(precision));
    std::memcpy(to + plan.weight(), narrow.data(), narrow.bytes());
  }
  return blob;
}

TokenProjection::TokenProjection(const ProjectionShape& shape, const layout::ProjectPlan& plan,
                                 Precision precision, const GpuDevice& device)
    : plan_(plan),
      most_blocks_(std::max(device.multiprocessors() / plan_.slices(), 1)),
      kernel_(device.kernels().get(projection_kernel(shape, plan, precision))) {
  kernel_.allow(static_cast<std::size_t>(plan_.shared_bytes()));
}

void TokenProjection::enqueue(cudaStream_t stream, const kernels::ProjectParams& params) const {
  const int tiles = (params.tokens + 63) / 64, blocks = (tiles + plan_.groups - 1) / plan_.groups;
  kernel_.launch(stream,
                 {.blocks = std::int64_t{std::min(blocks, most_blocks_)} * plan_.slices(),
                  .threads = plan_.threads(),
                  .shared_bytes = static_cast<std::size_t>(plan_.shared_bytes()),
                  .overlap_previous = true},
                 params);
}

}  // namespace warpweave::cuda::long_sequences
