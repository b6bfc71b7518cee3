#include "cuda/long/wide_projection.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "cuda/family.h"
#include "cuda/tensor_map.h"
#include "warpweave/tensor.h"

namespace warpweave::cuda::long_sequences {
namespace {

using layout::WidePlan;

bool normed(const ProjectionShape& s) { return s.norm != graph::NormKind::none; }
bool centred(const ProjectionShape& s) { return s.norm == graph::NormKind::layer; }

kernels::TokenPieces pieces_of(const kernels::Cells& cells, std::int64_t tokens) {
  const bool one = cells.columns == cells.pitch || cells.columns >= tokens;
  kernels::TokenPieces p{};
  p.first = cells.first, p.pitch = cells.pitch;
  p.pieces = one ? 1 : static_cast<int>(tokens / cells.columns);
  p.length = static_cast<int>(one ? tokens : cells.columns);
  p.tiles = (p.length + WidePlan::kTokens - 1) / WidePlan::kTokens;
  return p;
}

// Tokens of k channels, `pitch` of them from piece to piece.
void encode(kernels::ProjectTensorMap& map, const void* first, int k, const kernels::TokenPieces& tokens,
            std::int64_t pitch) {
  const std::int64_t token = std::int64_t{k} * 2, piece = tokens.pieces > 1 ? pitch * token : token;
  encode_tensor_map(&map, {.address = first,
                           .extent = {k, tokens.length, tokens.pieces, 1},
                           .stride = {token, piece, token},
                           .box = {WidePlan::kStep, WidePlan::kTokens, 1, 1},
                           .swizzle = 128});
}

}  // namespace

WidePlan wide_plan_of(const ProjectionShape& s) {
  WidePlan best{};
  for (const int columns : {192, 128, 96, 64}) {  // of those with the least padding the widest
    WidePlan plan{s.k, s.n, columns, 8};
    while (plan.shared_bytes() > kSharedBytes) --plan.stages;
    if (best.columns == 0 || plan.n_width() < best.n_width()) best = plan;
  }
  return best;
}

KernelSpec wide_kernel(const ProjectionShape& s, const WidePlan& plan, Precision precision) {
  const std::string scope = "warpweave::kernels::long_sequences::";
  std::string flags;
  const auto flag = [&](const char* name, bool on) {
    if (on) flags += (flags.empty() ? "" : "|") + scope + name;
  };
  flag("wide_from_grid", s.qkv);
  flag("wide_scaled", precision == Precision::fp16);
  flag("wide_biased", s.biased);
  flag("wide_residual", s.residual);
  flag("wide_mask", s.masked);
  flag("wide_rope", s.rope_head > 0);
  flag("wide_centred", centred(s));
  flag("wide_normed", normed(s));
  if (flags.empty()) flags = "0";
  std::string text = scope + "project_wide<" + device_type(precision);
  for (const int n : {plan.k, plan.n, plan.columns, plan.stages}) text += ", " + std::to_string(n);
  return {"long/project_wide.cuh", text + ", " + flags + ", " + std::to_string(s.rope_head) + ">"};
}

std::vector<std::byte> pack_wide(const ProjectionShape& s, const WidePlan& plan,
                                 std::span<const float> weight, std::span<const float> bias,
                                 Precision precision) {
  const int width = plan.steps() * WidePlan::kStep;
  std::vector<std::byte> blob(static_cast<std::size_t>(plan.packed_bytes()));
  const auto constant = [&](int offset, int n, float value) {
    std::memcpy(blob.data() + plan.constants_of(n / plan.columns) + offset + n % plan.columns * 4, &value, 4);
  };
  std::vector<float> row(static_cast<std::size_t>(width), 0.0f);
  for (int n = 0; n < plan.n; ++n) {
    const float* from = weight.data() + static_cast<std::size_t>(n) * plan.k;
    double mean = 0;
    if (centred(s))
      for (int k = 0; k < plan.k; ++k) mean += static_cast<double>(from[k]) / plan.k;
    float largest = 0;
    for (int k = 0; k < plan.k; ++k) {
      row[k] = static_cast<float>(from[k] - mean);
      largest = std::max(largest, std::fabs(row[k]));
    }
    int exponent = 0;  // of what is divided out
    if (precision == Precision::fp16 && largest > 0) {
      std::frexp(largest, &exponent);
      exponent = std::max(exponent - 14, -120);  // at most 2^14 is left
    }
    for (int k = 0; k < plan.k; ++k) row[k] = std::ldexp(row[k], -exponent);
    const Tensor narrow = Tensor::from({width}, row).to(storage_type(precision));
    const Tensor rounded = narrow.to(DType::f32);
    double sum = 0;
    const int place = layout::place_of(n % plan.columns);
    for (int k = 0; k < plan.k; ++k) {
      sum += rounded.values<float>()[k];
      std::memcpy(blob.data() + plan.byte_of(n / plan.columns, place, k),
                  static_cast<const std::byte*>(narrow.data()) + 2 * k, 2);
    }
    constant(plan.scale(), n, std::ldexp(1.0f, exponent));
    constant(plan.bias(), n, bias.empty() ? 0.0f : bias[n]);
    constant(plan.sum(), n, static_cast<float>(std::ldexp(sum, exponent)));
  }
  return blob;
}

WideProjection::WideProjection(const ProjectionShape& shape, const WidePlan& plan, Precision precision,
                               const GpuDevice& device)
    : shape_(shape),
      plan_(plan),
      most_blocks_(device.multiprocessors()),
      kernel_(device.kernels().get(wide_kernel(shape, plan, precision))) {
  prepare_tensor_maps();
  kernel_.allow(static_cast<std::size_t>(plan_.shared_bytes()));
}

void WideProjection::enqueue(cudaStream_t stream, const WideRun& run) const {
  const kernels::TokenPieces tokens = pieces_of(run.cells, run.tokens);
  const std::int64_t row_tiles = std::int64_t{tokens.pieces} * tokens.tiles;
  const auto* x = static_cast<const std::byte*>(run.x);
  kernels::WideParams p{};
  if (shape_.qkv)
    encode(p.x, x + run.cells.first * plan_.k * 2, plan_.k, tokens, tokens.pitch);
  else
    encode(p.x, x, plan_.k, tokens, tokens.length);
  p.tokens_x = x;
  if (shape_.residual)
    encode(p.added, static_cast<const std::byte*>(run.residual) + run.cells.first * plan_.n * 2, plan_.n,
           tokens, tokens.pitch);
  p.weights = run.weights, p.y = run.y, p.residual = run.residual, p.mask = run.mask;
  p.rotation = run.rotation, p.tokens = tokens, p.eps = run.eps;
  p.position_divisor = static_cast<int>(run.position_divisor), p.length = static_cast<int>(run.length);
  kernel_.launch(stream,
                 {.blocks = std::min(row_tiles * plan_.tiles(), most_blocks_),
                  .threads = WidePlan::kThreads,
                  .shared_bytes = static_cast<std::size_t>(plan_.shared_bytes()),
                  .overlap_previous = true},
                 p);
}

}  // namespace warpweave::cuda::long_sequences
