#include "cuda/long/layer.h"

#include <cmath>
#include <numbers>

namespace warpweave::cuda::long_sequences {

using graph::AxialAttention;

LayerShapes shapes_of(const AxialAttention& layer, std::int64_t head_pitch, bool masked) {
  LayerShapes s{.head_pitch = head_pitch, .inner = layer.heads * head_pitch, .qkv = {}, .output = {}};
  s.qkv.k = static_cast<int>(layer.dim), s.qkv.n = static_cast<int>(3 * s.inner);
  s.qkv.qkv = true, s.qkv.norm = layer.norm.kind, s.qkv.masked = masked;
  s.qkv.biased = layer.qkv_bias || layer.norm.kind == graph::NormKind::layer;
  s.qkv.rope_head = layer.rope ? static_cast<int>(head_pitch) : 0;
  s.output.k = static_cast<int>(s.inner), s.output.n = static_cast<int>(layer.dim);
  s.output.biased = layer.out_bias, s.output.residual = layer.residual;
  return s;
}

namespace {

// Where channel `position` of a head of q or k comes from.
std::int64_t rope_source(const AxialAttention& layer, std::int64_t position) {
  if (!layer.rope || layer.rope->style != graph::Rope::Style::half || position >= layer.rope->dims)
    return position;
  return position / 2 + position % 2 * (layer.rope->dims / 2);
}

}  // namespace

bool folds_scale(const AxialAttention& layer, Precision precision) {
  return precision != Precision::fp16 || std::fabs(layer.scale) * std::numbers::log2e <= 1;
}

FoldedWeights fold(const AxialAttention& layer, const LayerShapes& shapes,
                   const weights::LayerWeights& weights, Precision precision) {
  const std::int64_t dim = layer.dim, inner = layer.inner();
  const float *norm_weight = weights.find("norm.weight"), *norm_bias = weights.find("norm.bias"),
              *qkv_weight = weights.find("qkv.weight"), *qkv_bias = weights.find("qkv.bias"),
              *out_weight = weights.find("out.weight"), *out_bias = weights.find("out.bias");
  FoldedWeights f;
  f.qkv.assign(static_cast<std::size_t>(3 * shapes.inner * dim), 0.0f);
  f.qkv_bias.assign(static_cast<std::size_t>(3 * shapes.inner), 0.0f);
  f.output.assign(static_cast<std::size_t>(dim * shapes.inner), 0.0f);
  for (std::int64_t part = 0; part < 3; ++part) {
    const double scale =
        folds_scale(layer, precision) ? layer.scale * std::numbers::log2e : std::copysign(1.0, layer.scale);
    const double factor = part == 0 ? scale : 1;
    for (std::int64_t h = 0; h < layer.heads; ++h) {
      for (std::int64_t c = 0; c < layer.head_dim; ++c) {
        const std::int64_t from = part * inner + h * layer.head_dim + (part < 2 ? rope_source(layer, c) : c);
        const std::int64_t to = part * shapes.inner + h * shapes.head_pitch + c;
        const float* row = qkv_weight + from * dim;
        double bias = qkv_bias ? qkv_bias[from] : 0.0;
        for (std::int64_t k = 0; k < dim; ++k) {
          const double gain = norm_weight ? norm_weight[k] : 1.0;
          f.qkv[static_cast<std::size_t>(to * dim + k)] = static_cast<float>(factor * gain * row[k]);
          if (norm_bias) bias += static_cast<double>(row[k]) * norm_bias[k];
        }
        f.qkv_bias[static_cast<std::size_t>(to)] = static_cast<float>(factor * bias);
      }
    }
  }
  if (layer.norm.kind == graph::NormKind::layer) centre_rows(f.qkv, static_cast<int>(dim));
  for (std::int64_t n = 0; n < dim; ++n)
    for (std::int64_t i = 0; i < inner; ++i)
      f.output[static_cast<std::size_t>(n * shapes.inner + i / layer.head_dim * shapes.head_pitch +
                                        i % layer.head_dim)] = out_weight[n * inner + i];
  if (out_bias) f.output_bias.assign(out_bias, out_bias + dim);
  return f;
}

}  // namespace warpweave::cuda::long_sequences
