#include "cpu_fused/loops.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "graph/layers/axial_attention.h"
#include "graph/layers/feed_forward.h"
#include "graph/layers/linear.h"
#include "graph/layers/norm.h"
#include "graph/layers/patch.h"
#include "graph/layers/position_embedding.h"

namespace warpweave::test {
namespace {

using Row = std::vector<double>;

Row norm(const graph::Norm& norm, const Row& x, const weights::LayerWeights& w) {
  if (norm.kind == graph::NormKind::none) return x;
  const double n = static_cast<double>(x.size());
  double mean = 0, square = 0;
  if (norm.kind == graph::NormKind::layer)
    for (const double v : x) mean += v / n;
  for (const double v : x) square += (v - mean) * (v - mean) / n;
  Row y(x.size());
  for (std::size_t c = 0; c < x.size(); ++c) {
    y[c] = (x[c] - mean) / std::sqrt(square + norm.eps) * double(w.find("norm.weight")[c]);
    if (norm.kind == graph::NormKind::layer) y[c] += double(w.find("norm.bias")[c]);
  }
  return y;
}

Row linear(const Row& x, const float* weight, const float* bias, std::int64_t outputs) {
  Row y(static_cast<std::size_t>(outputs));
  for (std::size_t n = 0; n < y.size(); ++n) {
    y[n] = bias ? double(bias[n]) : 0;
    for (std::size_t k = 0; k < x.size(); ++k) y[n] += x[k] * double(weight[n * x.size() + k]);
  }
  return y;
}

void rotate(double* x, std::int64_t position, const graph::Rope& rope) {
  for (std::int64_t c = 0; c < rope.dims / 2; ++c) {
    const bool half = rope.style == graph::Rope::Style::half;
    double &a = x[half ? c : 2 * c], &b = x[half ? c + rope.dims / 2 : 2 * c + 1];
    const double angle = double(position) * std::pow(rope.theta, -2.0 * double(c) / double(rope.dims));
    const double a0 = a, b0 = b;
    a = a0 * std::cos(angle) - b0 * std::sin(angle);
    b = a0 * std::sin(angle) + b0 * std::cos(angle);
  }
}

// One sequence X [L][dim] -> Y; valid[t] says whether token t is a key.
std::vector<Row> attend(const graph::AxialAttention& l, const weights::LayerWeights& w,
                        const std::vector<Row>& x, const std::vector<bool>& valid) {
  const auto inner = l.inner(), d = l.head_dim;
  std::vector<Row> qkv, y;
  for (std::size_t t = 0; t < x.size(); ++t) {
    qkv.push_back(linear(norm(l.norm, x[t], w), w.find("qkv.weight"), w.find("qkv.bias"), 3 * inner));
    for (std::int64_t h = 0; h < 2 * l.heads && l.rope; ++h)
      rotate(qkv.back().data() + h * d, std::int64_t(t), *l.rope);
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    Row o(static_cast<std::size_t>(inner), 0.0);
    for (std::int64_t h = 0; h < l.heads; ++h) {
      Row s(x.size(), -INFINITY);
      double top = -INFINITY, sum = 0;
      for (std::size_t j = 0; j < x.size(); ++j) {
        if (!valid[j] || (l.causal && j > i)) continue;
        s[j] = 0;
        for (std::int64_t c = 0; c < d; ++c) s[j] += qkv[i][h * d + c] * qkv[j][inner + h * d + c];
        s[j] *= l.scale;
        top = std::max(top, s[j]);
      }
      for (const double v : s) sum += v == -INFINITY ? 0 : std::exp(v - top);
      for (std::size_t j = 0; j < x.size(); ++j)
        for (std::int64_t c = 0; c < d && s[j] != -INFINITY; ++c)
          o[h * d + c] += std::exp(s[j] - top) / sum * qkv[j][2 * inner + h * d + c];
    }
    y.push_back(linear(o, w.find("out.weight"), w.find("out.bias"), l.dim));
    for (std::size_t c = 0; c < x[i].size() && l.residual; ++c) y.back()[c] += x[i][c];
  }
  return y;
}

double activate(graph::Activation a, double x) {
  switch (a) {
    case graph::Activation::gelu:
      return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    case graph::Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case graph::Activation::relu:
      return x > 0 ? x : 0;
    case graph::Activation::silu:
      return x / (1 + std::exp(-x));
  }
  return 0;
}

Row cell(const graph::Layer& layer, const weights::LayerWeights& w, const Row& x, std::int64_t i,
         std::int64_t j) {
  if (auto* l = dynamic_cast<const graph::FeedForward*>(&layer)) {
    Row hidden = linear(norm(l->norm, x, w), w.find("up.weight"), w.find("up.bias"), l->hidden);
    for (double& v : hidden) v = activate(l->activation, v);
    Row y = linear(hidden, w.find("down.weight"), w.find("down.bias"), l->dim);
    for (std::size_t c = 0; c < x.size() && l->residual; ++c) y[c] += x[c];
    return y;
  }
  if (auto* l = dynamic_cast<const graph::NormLayer*>(&layer)) return norm(l->norm, x, w);
  if (auto* l = dynamic_cast<const graph::Linear*>(&layer))
    return linear(x, w.find("weight"), w.find("bias"), l->out);
  if (auto* l = dynamic_cast<const graph::PositionEmbedding*>(&layer)) {
    Row y = x;
    for (std::int64_t c = 0; c < l->dim; ++c)
      y[c] += double(w.find("rows")[i * l->dim + c]) + double(w.find("columns")[j * l->dim + c]);
    return y;
  }
  throw std::logic_error("no loops for this layer");
}

}  // namespace

std::vector<double> layer_in_loops(const graph::Layer& layer, const weights::LayerWeights& w,
                                   const std::vector<float>& x, std::int64_t batch,
                                   const graph::CellShape& in, const std::vector<std::uint8_t>& mask) {
  const graph::CellShape out = layer.output(in);
  std::vector<double> y(static_cast<std::size_t>(batch * out.cells() * out.channels));
  const auto row_of = [&](std::int64_t cell) {
    return Row(x.begin() + cell * in.channels, x.begin() + (cell + 1) * in.channels);
  };
  const auto put = [&](std::int64_t cell, const Row& row) {
    std::copy(row.begin(), row.end(), y.begin() + cell * out.channels);
  };

  if (auto* l = dynamic_cast<const graph::AxialAttention*>(&layer)) {
    const bool rows = l->axis == graph::Axis::row;
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t s = 0; s < l->sequences(in); ++s) {
        std::vector<Row> sequence;
        std::vector<std::int64_t> cells;
        std::vector<bool> valid;
        for (std::int64_t t = 0; t < l->length(in); ++t) {
          cells.push_back((b * in.rows + (rows ? s : t)) * in.columns + (rows ? t : s));
          sequence.push_back(row_of(cells.back()));
          valid.push_back(mask.empty() || mask[cells.back()] != 0);
        }
        const auto result = attend(*l, w, sequence, valid);
        for (std::size_t t = 0; t < cells.size(); ++t) put(cells[t], result[t]);
      }
    return y;
  }

  const auto* embed = dynamic_cast<const graph::PatchEmbed*>(&layer);
  const auto* unembed = dynamic_cast<const graph::PatchUnembed*>(&layer);
  const std::int64_t p = embed ? embed->patch : unembed ? unembed->patch : 1;
  const graph::CellShape& grid = embed ? out : in;  // of patches
  const std::int64_t channels = embed ? embed->channels : unembed ? unembed->channels : 0;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t i = 0; i < grid.rows; ++i)
      for (std::int64_t j = 0; j < grid.columns; ++j) {
        const std::int64_t at = (b * grid.rows + i) * grid.columns + j;
        if (!embed && !unembed) {
          put(at, cell(layer, w, row_of(at), i, j));
          continue;
        }
        std::vector<std::int64_t> pixels;  // of the patch, in (row, column, channel) order
        for (std::int64_t r = 0; r < p; ++r)
          for (std::int64_t c = 0; c < p * channels; ++c)
            pixels.push_back(((b * grid.rows + i) * p + r) * grid.columns * p * channels + j * p * channels +
                             c);
        if (embed) {
          Row patch;
          for (const auto at_pixel : pixels) patch.push_back(x[at_pixel]);
          put(at, linear(patch, w.find("weight"), w.find("bias"), embed->dim));
        } else {
          const Row patch = linear(row_of(at), w.find("weight"), w.find("bias"), p * p * channels);
          for (std::size_t k = 0; k < pixels.size(); ++k) y[pixels[k]] = patch[k];
        }
      }
  return y;
}

}  // namespace warpweave::test
