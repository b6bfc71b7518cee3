#include "cuda/split/matrices.h"

#include <cmath>

#include "cuda/split/pack.h"

namespace warpweave::cuda::split {
namespace {

// Where channel c of a packed head of q or k comes from: RoPE's pairs are neighbours.
std::int64_t source(const graph::AxialAttention& layer, std::int64_t c) {
  if (!layer.rope || layer.rope->style != graph::Rope::Style::half || c >= layer.rope->dims) return c;
  return c / 2 + c % 2 * (layer.rope->dims / 2);
}

}  // namespace

Matrix qkv_matrix(const graph::AxialAttention& layer, const weights::LayerWeights& weights) {
  const float* const weight = weights.find("qkv.weight");
  const float* const bias = weights.find("qkv.bias");
  const float* const gain = weights.find("norm.weight");
  const float* const offset = weights.find("norm.bias");
  const std::int64_t pitch = head_pitch(layer.head_dim);
  Matrix m(3 * layer.heads * pitch, layer.dim);
  for (std::int64_t part = 0; part < 3; ++part) {
    const double sign = part == 0 && layer.scale < 0 ? -1 : 1;  // kernels take a positive scale
    for (std::int64_t head = 0; head < layer.heads; ++head) {
      for (std::int64_t c = 0; c < layer.head_dim; ++c) {
        const std::int64_t from =
            (part * layer.heads + head) * layer.head_dim + (part == 2 ? c : source(layer, c));
        const std::int64_t to = (part * layer.heads + head) * pitch + c;
        double sum = bias ? bias[from] : 0.0;
        for (std::int64_t i = 0; i < layer.dim; ++i) {
          const double w = weight[from * layer.dim + i];
          if (offset) sum += w * offset[i];
          m.row(to)[i] = sign * w * (gain ? gain[i] : 1.0f);
        }
        m.bias[to] = sign * sum;
      }
    }
  }
  return m;
}

Matrix out_matrix(const graph::AxialAttention& layer, const weights::LayerWeights& weights) {
  const float* const weight = weights.find("out.weight");
  const float* const bias = weights.find("out.bias");
  const std::int64_t pitch = head_pitch(layer.head_dim);
  Matrix m(layer.dim, layer.heads * pitch);
  for (std::int64_t n = 0; n < layer.dim; ++n) {
    for (std::int64_t c = 0; c < layer.inner(); ++c)
      m.row(n)[c / layer.head_dim * pitch + c % layer.head_dim] = weight[n * layer.inner() + c];
    m.bias[n] = bias ? bias[n] : 0.0;
  }
  return m;
}

double row_bound(const Matrix& m, std::int64_t r) {
  double square = 0;
  for (std::int64_t i = 0; i < m.k; ++i) square += m.row(r)[i] * m.row(r)[i];
  return std::sqrt(square * static_cast<double>(m.k)) + std::fabs(m.bias[r]);
}

}  // namespace warpweave::cuda::split
