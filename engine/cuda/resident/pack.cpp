#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>

#include "cuda/resident/problem.h"

namespace warpweave::cuda::resident {
namespace {

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >>
                                    16);  // to nearest even; weights are finite
}

std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00);
  if (magnitude < 6.103515625e-05f) {  // subnormal: units of 2^-24, rounded by the addition
    const float shifted = magnitude + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t m = bits & 0x7fffffff;
  return static_cast<std::uint16_t>(sign | ((m + 0xfff + (m >> 13 & 1) - 0x38000000u) >> 13));
}

// Where channel `position` of a packed Q or K head comes from.
int rope_source(const Problem& p, int position) {
  if (p.rope_dims == 0 || !p.rope_half || position >= p.rope_dims) return position;
  return position / 2 + position % 2 * (p.rope_dims / 2);
}

}  // namespace

std::vector<std::byte> pack(const Problem& p, const Tensors& t) {
  const layout::AttentionWeights w = p.weights();
  const int inner = p.heads * p.head_dim, hw = w.head_width();
  const auto narrow = [&](double v) {
    return p.element == Element::bf16 ? to_bf16(static_cast<float>(v)) : to_f16(static_cast<float>(v));
  };
  std::vector<std::byte> blob(static_cast<std::size_t>(w.bytes()));
  const auto put = [&](std::size_t offset, auto value) {
    std::memcpy(blob.data() + offset, &value, sizeof(value));
  };

  std::vector<double> out_bias(static_cast<std::size_t>(p.dim), 0.0);
  if (t.out_bias)
    for (int n = 0; n < p.dim; ++n) out_bias[n] = t.out_bias[n];
  for (int h = 0; h < p.heads; ++h) {
    for (int part = 0; part < 3; ++part) {
      const double factor = part == 0 ? p.scale * std::numbers::log2e : 1.0;
      for (int c = 0; c < p.head_dim; ++c) {
        const int source = part == 2 ? c : rope_source(p, c);
        const std::size_t row = static_cast<std::size_t>(part) * inner + h * p.head_dim + source;
        const float* weight = t.qkv_weight + row * p.dim;
        double bias = t.qkv_bias ? t.qkv_bias[row] : 0.0;
        if (t.norm_bias)
          for (int d = 0; d < p.dim; ++d) bias += static_cast<double>(weight[d]) * t.norm_bias[d];
        put(static_cast<std::size_t>((h * 3 + part) * hw + c) * 4, static_cast<float>(bias * factor));
        if (part == 2 && !p.mask)
          for (int n = 0; n < p.dim; ++n)
            out_bias[n] += bias * t.out_weight[static_cast<std::size_t>(n) * inner + h * p.head_dim + c];
        for (int k = 0; k < p.dim; ++k) {
          const int channel = layout::channel_of(p.dim, k / 8, k % 8);
          const double gain = t.norm_weight ? t.norm_weight[channel] : 1.0;
          put(static_cast<std::size_t>(w.qkv() + h * w.head_qkv_bytes() +
                                       2 * layout::core_index(3 * hw, part * hw + c, k)),
              narrow(weight[channel] * gain * factor));
        }
      }
    }
    for (int n = 0; n < p.dim; ++n) {
      const int channel = layout::channel_of(p.dim, n / 8, n % 8);
      for (int c = 0; c < p.head_dim; ++c)
        put(static_cast<std::size_t>(w.out() + h * w.head_out_bytes() +
                                     2 * layout::core_index(w.dim_width(), n, c)),
            narrow(t.out_weight[static_cast<std::size_t>(channel) * inner + h * p.head_dim + c]));
    }
  }
  for (int n = 0; n < p.dim; ++n)
    put(static_cast<std::size_t>(w.out_bias() + n * 4),
        static_cast<float>(out_bias[layout::channel_of(p.dim, n / 8, n % 8)]));
  return blob;
}

std::vector<float> rotation(const Problem& p, int length) {
  const int pairs = p.weights().head_width() / 2;
  std::vector<float> table(static_cast<std::size_t>(length) * pairs * 2);
  for (int t = 0; t < length; ++t)
    for (int c = 0; c < pairs; ++c) {
      const double angle = 2 * c < p.rope_dims ? t * std::pow(p.rope_theta, -2.0 * c / p.rope_dims) : 0.0;
      table[(static_cast<std::size_t>(t) * pairs + c) * 2] = static_cast<float>(std::cos(angle));
      table[(static_cast<std::size_t>(t) * pairs + c) * 2 + 1] = static_cast<float>(std::sin(angle));
    }
  return table;
}

}  // namespace warpweave::cuda::resident
