#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numbers>
#include <string>
#include <vector>

#include "cuda/resident/problem.h"
#include "cuda/rope.h"
#include "numeric/half.h"
#include "warpweave/error.h"

namespace warpweave::cuda::resident {
namespace {

// Where channel `position` of a packed Q or K head comes from.
int rope_source(const Problem& p, int position) {
  if (p.rope_dims == 0 || !p.rope_half || position >= p.rope_dims) return position;
  return position / 2 + position % 2 * (p.rope_dims / 2);
}

// A layer's weights with everything folded in that problem.h names; `part` is 0 for Q, 1 for K, 2 for V.
class Folded {
 public:
  Folded(const Problem& p, const Tensors& t)
      : p_(p), t_(t), inner_(p.heads * p.head_dim), mean_(static_cast<std::size_t>(3) * inner_) {
    if (p.norm != Norm::layer) return;
    for (std::size_t r = 0; r < mean_.size(); ++r) {
      for (int d = 0; d < p.dim; ++d) mean_[r] += gained(r, d);
      mean_[r] /= p.dim;
    }
  }

  double weight(int part, int head, int c, int channel) const {
    const std::size_t r = row(part, head, c);
    return (gained(r, channel) - mean_[r]) * factor(part);
  }
  double bias(int part, int head, int c) const {
    const std::size_t r = row(part, head, c);
    double sum = t_.qkv_bias ? t_.qkv_bias[r] : 0.0;
    if (t_.norm_bias)
      for (int d = 0; d < p_.dim; ++d)
        sum += static_cast<double>(t_.qkv_weight[r * p_.dim + d]) * t_.norm_bias[d];
    return sum * factor(part);
  }
  double out(int head, int c, int channel) const {
    return t_.out_weight[static_cast<std::size_t>(channel) * inner_ + head * p_.head_dim + c];
  }

  double largest_weight(int part, int head) const {
    return largest([&](int c, int channel) { return weight(part, head, c, channel); });
  }
  double largest_out(int head) const {
    return largest([&](int c, int channel) { return out(head, c, channel); });
  }

 private:
  double gained(std::size_t row, int channel) const {
    const double gain = t_.norm_weight ? t_.norm_weight[channel] : 1.0;
    return t_.qkv_weight[row * p_.dim + channel] * gain;
  }
  double factor(int part) const { return part == 0 ? p_.scale * std::numbers::log2e : 1.0; }
  std::size_t row(int part, int head, int c) const {
    const int source = part == 2 ? c : rope_source(p_, c);
    return static_cast<std::size_t>(part) * inner_ + head * p_.head_dim + source;
  }
  template <class F>
  double largest(const F& value) const {
    double most = 0;
    for (int c = 0; c < p_.head_dim; ++c)
      for (int d = 0; d < p_.dim; ++d) most = std::max(most, std::fabs(value(c, d)));
    return most;
  }

  const Problem& p_;
  const Tensors& t_;
  int inner_;
  std::vector<double> mean_;  // of a row of Wqkv
};

// The power of two to divide `a` by and multiply `b` by, so that the two come to the same size.
int balance(double a, double b) {
  return a > 0 && b > 0 ? static_cast<int>(std::lround((std::log2(a) - std::log2(b)) / 2)) : 0;
}

constexpr double kBeyondF16 = 65520;  // and what is larger rounds to infinity

// Powers of two that a head's weights are multiplied by: of Q, K and V; the output's is V's, negated.
struct Exponents {
  Exponents(const Problem& p, const Folded& folded, int head) {
    if (p.element != Element::f16) return;
    of[1] = balance(folded.largest_weight(0, head), folded.largest_weight(1, head));
    of[0] = -of[1];
    of[2] = -balance(folded.largest_weight(2, head), folded.largest_out(head));
  }
  int of[3] = {0, 0, 0};
};

}  // namespace

std::string out_of_range(const Problem& p, const Tensors& t) {
  if (p.element != Element::f16) return {};
  const Folded folded(p, t);
  double most = 0;
  for (int h = 0; h < p.heads; ++h) {
    const Exponents exponents(p, folded, h);
    for (int part = 0; part < 3; ++part)
      most = std::max(most, std::ldexp(folded.largest_weight(part, h), exponents.of[part]));
    most = std::max(most, std::ldexp(folded.largest_out(h), -exponents.of[2]));
  }
  if (most < kBeyondF16) return {};
  char number[32];
  std::snprintf(number, sizeof(number), "%.3g", most);
  return "a weight times the norm's gain and the scale leaves the range of fp16 (" + std::string(number) +
         ")";
}

std::vector<std::byte> pack(const Problem& p, const Tensors& t) {
  const layout::AttentionWeights w = p.weights();
  const int hw = w.head_width();
  const Folded folded(p, t);
  if (const std::string reason = out_of_range(p, t); !reason.empty())
    throw Error(ErrorCode::device, "axial_attention: " + reason);
  const auto narrow = [&](double v) {
    return p.element == Element::bf16 ? float_to_bf16(static_cast<float>(v))
                                      : float_to_f16(static_cast<float>(v));
  };
  std::vector<std::byte> blob(static_cast<std::size_t>(w.bytes()));
  const auto put = [&](std::size_t offset, auto value) {
    std::memcpy(blob.data() + offset, &value, sizeof(value));
  };

  const auto put_bias = [&](int once, int tile, int channel, double value) {
    for (const int at : {once + channel * 4, tile + channel / 2 * 16 + channel % 2 * 4,
                         tile + channel / 2 * 16 + channel % 2 * 4 + 8})
      put(static_cast<std::size_t>(at), static_cast<float>(value));
  };

  std::vector<double> out_bias(static_cast<std::size_t>(p.dim), 0.0);
  if (t.out_bias)
    for (int n = 0; n < p.dim; ++n) out_bias[n] = t.out_bias[n];
  for (int h = 0; h < p.heads; ++h) {
    const Exponents exponents(p, folded, h);
    const auto& exponent = exponents.of;
    for (int part = 0; part < 3; ++part)
      for (int c = 0; c < p.head_dim; ++c) {
        const double bias = folded.bias(part, h, c);
        put_bias((h * 3 + part) * hw * 4, w.head_tile_bias(h, part, 0), c, std::ldexp(bias, exponent[part]));
        if (part == 2 && !p.mask)
          for (int n = 0; n < p.dim; ++n) out_bias[n] += bias * folded.out(h, c, n);
        for (int k = 0; k < p.dim; ++k) {
          const int channel = layout::channel_of(p.dim, k / 8, k % 8);
          put(static_cast<std::size_t>(w.qkv() + h * w.head_qkv_bytes() +
                                       2 * layout::core_index(3 * hw, part * hw + c, k)),
              narrow(std::ldexp(folded.weight(part, h, c, channel), exponent[part])));
        }
      }
    for (int n = 0; n < p.dim; ++n) {
      const int channel = layout::channel_of(p.dim, n / 8, n % 8);
      for (int c = 0; c < p.head_dim; ++c)
        put(static_cast<std::size_t>(w.out() + h * w.head_out_bytes() +
                                     2 * layout::core_index(w.dim_width(), n, c)),
            narrow(std::ldexp(folded.out(h, c, channel), -exponent[2])));
    }
  }
  for (int n = 0; n < p.dim; ++n)
    put_bias(w.out_bias(), w.out_tile_bias(0), n, out_bias[layout::channel_of(p.dim, n / 8, n % 8)]);
  return blob;
}

std::vector<float> rotation(const Problem& p, int length) {
  return rotation_table(p.rope_theta, p.rope_dims, p.weights().head_width() / 2, length);
}

}  // namespace warpweave::cuda::resident
