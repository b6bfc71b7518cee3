// Index arithmetic that the kernels share with the host: every element has one place, nothing overlaps.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <set>

#include "cuda/resident/problem.h"
#include "layout/divisor.h"
#include "warpweave/error.h"

namespace warpweave::cuda::resident {
namespace {

TEST(ChannelOrder, IsAPermutationOfEveryDim) {
  for (int dim = 8; dim <= 256; dim += 8) {
    std::set<int> seen;
    for (int k = 0; k < dim; ++k) seen.insert(layout::channel_of(dim, k / 8, k % 8));
    ASSERT_EQ(static_cast<int>(seen.size()), dim) << dim;
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), dim - 1);
  }
}

TEST(ChannelOrder, GivesALaneContiguousChannels) {
  for (int lane = 0; lane < 4; ++lane)  // 32 channels: four groups, 8 neighbours a lane
    for (int i = 0; i < 8; ++i) EXPECT_EQ(layout::channel_of(32, i / 2, 2 * lane + i % 2), 8 * lane + i);
  for (int lane = 0; lane < 4; ++lane)  // the tail of 16: two groups, 4 neighbours
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(layout::channel_of(48, 4 + i / 2, 2 * lane + i % 2), 32 + 4 * lane + i);
}

TEST(CoreMatrices, HoldEveryElementOnce) {
  for (const auto& [rows, columns] : {std::pair(48, 16), std::pair(96, 64), std::pair(16, 256)}) {
    std::set<int> seen;
    for (int n = 0; n < rows; ++n)
      for (int k = 0; k < columns; ++k) seen.insert(layout::core_index(rows, n, k));
    ASSERT_EQ(static_cast<int>(seen.size()), rows * columns);
    EXPECT_EQ(*seen.rbegin(), rows * columns - 1);
  }
  // A row of a core matrix is 16 contiguous bytes, the other half of k follows 128 bytes later.
  EXPECT_EQ(layout::core_index(96, 5, 7) - layout::core_index(96, 5, 0), 7);
  EXPECT_EQ(2 * layout::core_index(96, 0, 8), layout::core_bytes);
  EXPECT_EQ(2 * layout::core_index(96, 8, 0), layout::core_pair_bytes);
}

TEST(BlockPlan, PartsFollowOneAnother) {
  for (const int dim : {8, 24, 64, 136, 256})
    for (const int head_dim : {8, 16, 40, 128})
      for (const int stages : {1, 2}) {
        const layout::BlockPlan plan{{dim, 3, head_dim}, 64, 8, 1, stages};
        EXPECT_GE(plan.valid(), 24 * stages);  // barriers and counters
        EXPECT_GE(plan.bias() - plan.valid(), plan.tokens() / 8);
        EXPECT_EQ(plan.x() - plan.bias(), plan.weights.qkv());
        EXPECT_EQ(plan.key(0) - plan.x(), plan.tokens() * plan.weights.dim_width() * 2);
        EXPECT_EQ(plan.value(0) - plan.key(0), plan.head_bytes());
        EXPECT_EQ(plan.key(1) - plan.value(0), plan.head_bytes());
        EXPECT_EQ(plan.stage() - plan.value(1), plan.head_bytes());
        EXPECT_GE(plan.stage_bytes(), plan.weights.head_out_bytes());
        EXPECT_EQ(plan.bytes() - plan.stage(), stages * plan.stage_bytes());
        for (const int offset :
             {plan.valid(), plan.bias(), plan.x(), plan.key(1), plan.value(1), plan.stage()})
          EXPECT_EQ(offset % 128, 0);
      }
}

double widen_bf16(std::uint16_t v) { return std::bit_cast<float>(static_cast<std::uint32_t>(v) << 16); }
double widen_f16(std::uint16_t v) {
  const int exponent = v >> 10 & 31, fraction = v & 1023;
  const double m = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return v & 0x8000 ? -m : m;
}

struct Layer {
  int dim, heads, head_dim;
  std::vector<float> norm_weight, norm_bias, qkv, qkv_bias, out, out_bias;
  Layer(int d, int h, int hd) : dim(d), heads(h), head_dim(hd) {
    const int inner = h * hd;
    std::uint32_t state = 1;
    const auto fill = [&](std::vector<float>& v, int n) {
      for (int i = 0; i < n; ++i) {
        state = state * 1664525 + 1013904223;
        v.push_back(static_cast<float>(state >> 8) / (1 << 23) - 1);
      }
    };
    fill(norm_weight, d), fill(norm_bias, d), fill(qkv, 3 * inner * d), fill(qkv_bias, 3 * inner);
    fill(out, d * inner), fill(out_bias, d);
  }
  Tensors tensors() const {
    return {norm_weight.data(), norm_bias.data(), qkv.data(), qkv_bias.data(), out.data(), out_bias.data()};
  }
};

template <class T>
T read(const std::vector<std::byte>& blob, int offset) {
  T value;
  std::memcpy(&value, blob.data() + offset, sizeof(T));
  return value;
}

TEST(Packing, FoldsGainScaleAndBiases) {
  const Layer layer(40, 2, 24);
  Problem p{.dim = 40, .heads = 2, .head_dim = 24, .scale = 0.25, .qkv_bias = true};
  for (const Element element : {Element::bf16, Element::f16}) {
    p.element = element;
    const auto blob = pack(p, layer.tensors());
    const auto w = p.weights();
    ASSERT_EQ(static_cast<int>(blob.size()), w.bytes());
    const double tolerance = element == Element::bf16 ? 1.0 / 256 : 1.0 / 2048;
    const auto widen = element == Element::bf16 ? widen_bf16 : widen_f16;
    for (int h = 0; h < 2; ++h)
      for (int part = 0; part < 3; ++part) {
        int shift = 0;  // a power of two that this part of the head was multiplied by
        for (int c = 0; c < 32; ++c) {
          const int row = part * 48 + h * 24 + c;
          const double factor = part == 0 ? 0.25 * std::numbers::log2e : 1;
          double bias = c < 24 ? layer.qkv_bias[row] : 0, mean = 0;  // LayerNorm's rows have sum zero
          for (int d = 0; d < 40 && c < 24; ++d) mean += layer.qkv[row * 40 + d] * layer.norm_weight[d] / 40;
          for (int k = 0; k < 48; ++k) {
            const int channel = k < 40 ? layout::channel_of(40, k / 8, k % 8) : -1;
            const double expected =
                c < 24 && k < 40
                    ? (static_cast<double>(layer.qkv[row * 40 + channel]) * layer.norm_weight[channel] -
                       mean) *
                          factor
                    : 0;
            if (c < 24 && k < 40) bias += layer.qkv[row * 40 + channel] * layer.norm_bias[channel];
            const double got = widen(read<std::uint16_t>(
                blob, w.qkv() + h * w.head_qkv_bytes() + 2 * layout::core_index(96, part * 32 + c, k)));
            if (c == 0 && k == 0) shift = static_cast<int>(std::lround(std::log2(got / expected)));
            ASSERT_TRUE(element == Element::f16 || shift == 0);
            ASSERT_NEAR(std::ldexp(got, -shift), expected, std::fabs(expected) * tolerance + 1e-7);
          }
          const double got = read<float>(blob, ((h * 3 + part) * 32 + c) * 4);
          ASSERT_NEAR(std::ldexp(got, -shift), bias * factor, 1e-5);
          for (const int copy : {0, 8})
            ASSERT_EQ(read<float>(blob, w.head_tile_bias(h, part, c) + copy + c % 2 * 4), got);
        }
      }
  }
}

TEST(Packing, RepeatsBiasesBehindTheWeights) {
  const Layer layer(40, 2, 24);
  const Problem p{.dim = 40, .heads = 2, .head_dim = 24, .scale = 0.25, .qkv_bias = true};
  const auto blob = pack(p, layer.tensors());
  const auto w = p.weights();
  EXPECT_EQ(w.tile_bias() % 128, 0);
  EXPECT_LE(w.out_tile_bias(47) + 16, w.head_tile_bias(0, 0, 0));
  for (int part = 0; part < 3; ++part) {
    EXPECT_EQ(w.warp_end(part + 1) % 128, 0);
    EXPECT_LE(w.warp_end(part), w.head_tile_bias(0, part, 0));
    EXPECT_LE(w.head_tile_bias(1, part, 31) + 8, w.warp_end(part + 1));
  }
  EXPECT_EQ(w.warp_end(3), w.bytes());
  EXPECT_EQ(w.warp_bytes(1), w.warp_end(1) - w.qkv());
  for (int c = 0; c < 48; ++c)
    for (const int copy : {0, 8})
      EXPECT_EQ(read<float>(blob, w.out_tile_bias(c) + copy + c % 2 * 4),
                read<float>(blob, w.out_bias() + c * 4));
}

TEST(Divisor, Divides) {
  for (const unsigned d :
       {1u, 2u, 3u, 7u, 32u, 33u, 641u, 65536u, 65537u, 1000003u, (1u << 30) - 1, 1u << 30}) {
    const auto by = layout::Divisor::of(d);
    for (unsigned long long multiple = 0; multiple < 1ull << 30;
         multiple += d * std::max(1ull, (1ull << 20) / d))
      for (const long long near : {-1, 0, 1}) {
        const long long n = static_cast<long long>(multiple) + near;
        if (n < 0 || n >= 1ll << 30) continue;
        ASSERT_EQ(by.divide(static_cast<unsigned>(n)), static_cast<unsigned>(n) / d) << n << " / " << d;
      }
    ASSERT_EQ(by.divide((1u << 30) - 1), ((1u << 30) - 1) / d);
  }
}

TEST(Packing, MovesTheValueBiasOutOnlyWithoutAMask) {
  const Layer layer(8, 1, 8);
  Problem p{.dim = 8, .heads = 1, .head_dim = 8, .norm = Norm::none, .scale = 1, .qkv_bias = true};
  Tensors t = layer.tensors();
  t.norm_weight = t.norm_bias = nullptr;
  for (const bool mask : {false, true}) {
    p.mask = mask;
    const auto blob = pack(p, t);
    for (int n = 0; n < 8; ++n) {
      double expected = layer.out_bias[n];
      for (int c = 0; c < 8 && !mask; ++c) expected += layer.out[n * 8 + c] * layer.qkv_bias[16 + c];
      EXPECT_NEAR(read<float>(blob, p.weights().out_bias() + n * 4), expected, 1e-6);
    }
  }
}

TEST(Packing, MakesRopePairsNeighbours) {
  const Layer layer(8, 1, 8);
  Problem p{
      .dim = 8, .heads = 1, .head_dim = 8, .norm = Norm::none, .scale = std::numbers::ln2, .rope_dims = 6};
  Tensors t = layer.tensors();
  t.norm_weight = t.norm_bias = t.qkv_bias = nullptr;
  const int source[] = {0, 3, 1, 4, 2, 5, 6, 7};
  const auto blob = pack(p, t);
  for (int part = 0; part < 3; ++part)
    for (int c = 0; c < 8; ++c) {
      const int row = part * 8 + (part == 2 ? c : source[c]);
      const double got = widen_bf16(
          read<std::uint16_t>(blob, p.weights().qkv() + 2 * layout::core_index(48, part * 16 + c, 0)));
      EXPECT_NEAR(got, layer.qkv[row * 8], std::fabs(layer.qkv[row * 8]) / 200) << part << " " << c;
    }
  const auto table = rotation(p, 5);
  ASSERT_EQ(table.size(), 5u * 8 * 2);
  EXPECT_FLOAT_EQ(table[(4 * 8 + 1) * 2], static_cast<float>(std::cos(4 * std::pow(10000.0, -2.0 / 6))));
  EXPECT_EQ(table[(4 * 8 + 3) * 2], 1.0f);  // beyond the rotated channels
  EXPECT_EQ(table[(4 * 8 + 3) * 2 + 1], 0.0f);
}

// A gain and a scale that push single weights out of fp16's range at either end.
TEST(Packing, KeepsFoldedWeightsInTheRangeOfF16) {
  const Layer layer(8, 2, 8);
  const double unit = std::ldexp(1.0, -25);  // of what is rounded in the subnormal range
  for (const double extreme : {1e-5, 3e6}) {
    Problem p{.dim = 8,
              .heads = 2,
              .head_dim = 8,
              .element = Element::f16,
              .norm = Norm::rms,
              .scale = extreme * std::numbers::ln2};
    Tensors t = layer.tensors();
    t.norm_bias = nullptr;
    const auto blob = pack(p, t);
    const layout::AttentionWeights w = p.weights();
    const auto weight = [&](int head, int part, int c, int k) {
      return widen_f16(read<std::uint16_t>(
          blob, w.qkv() + head * w.head_qkv_bytes() + 2 * layout::core_index(48, part * 16 + c, k)));
    };
    for (int h = 0; h < 2; ++h)
      for (int c = 0; c < 8; ++c)
        for (int d = 0; d < 8; ++d) {  // Wq times Wk is what it was, to the digits of two roundings
          const double gain = layer.norm_weight[layout::channel_of(8, 0, d)];
          const auto exact = [&](int part) {
            return layer.qkv[((part * 2 + h) * 8 + c) * 8 + layout::channel_of(8, 0, d)] * gain;
          };
          const double expected = exact(0) * exact(1) * extreme;
          const double q = weight(h, 0, c, d), k = weight(h, 1, c, d), v = weight(h, 2, c, d);
          EXPECT_NEAR(q * k, expected, std::fabs(expected) * 1.1e-3 + unit * (std::fabs(q) + std::fabs(k)));
          const double out = widen_f16(
              read<std::uint16_t>(blob, w.out() + h * w.head_out_bytes() + 2 * layout::core_index(16, 0, c)));
          const double through = exact(2) * layer.out[layout::channel_of(8, 0, 0) * 16 + h * 8 + c];
          EXPECT_NEAR(v * out, through, std::fabs(through) * 1.1e-3 + unit * (std::fabs(v) + std::fabs(out)));
        }
  }
}

TEST(Packing, RefusesWhatNoScalingBringsIntoTheRangeOfF16) {
  const Layer layer(8, 1, 8);
  Problem p{.dim = 8, .heads = 1, .head_dim = 8, .element = Element::f16, .norm = Norm::rms, .scale = 1e12};
  Tensors t = layer.tensors();
  t.norm_bias = nullptr;
  EXPECT_THROW(pack(p, t), Error);
  EXPECT_NE(out_of_range(p, t).find("leaves the range of fp16"), std::string::npos) << out_of_range(p, t);
  p.element = Element::bf16;
  EXPECT_NO_THROW(pack(p, t));
  EXPECT_EQ(out_of_range(p, t), "");
}

// Scales on both sides of the border: pack() throws exactly where out_of_range() speaks, and packs no
// infinity.
TEST(Packing, SaysExactlyWhatLeavesTheRangeOfF16) {
  const Layer layer(8, 1, 8);
  Tensors t = layer.tensors();
  t.norm_bias = nullptr;
  int spoke = 0, packed = 0;
  for (double scale = 1e8; scale < 1e11; scale *= 1.1) {
    const Problem p{
        .dim = 8, .heads = 1, .head_dim = 8, .element = Element::f16, .norm = Norm::rms, .scale = scale};
    if (!out_of_range(p, t).empty()) {
      EXPECT_THROW(pack(p, t), Error);
      ++spoke;
      continue;
    }
    const auto blob = pack(p, t);
    for (int at = p.weights().qkv(); at < p.weights().tile_bias(); at += 2)
      ASSERT_NE(read<std::uint16_t>(blob, at) & 0x7fff, 0x7c00) << scale;
    ++packed;
  }
  EXPECT_GT(spoke, 0);
  EXPECT_GT(packed, 0);
}

TEST(Packing, RoundsToNearestEven) {
  Problem p{.dim = 8, .heads = 1, .head_dim = 8, .norm = Norm::none, .scale = std::numbers::ln2};
  std::vector<float> qkv(24 * 8, 0.0f), out(64, 0.0f);
  const float values[] = {1.00390625f, 1.01171875f, 65519.0f, 5.9604645e-08f, 2.9802322e-08f, -6.1e-05f};
  for (const Element element : {Element::bf16, Element::f16}) {
    p.element = element;
    for (const float v : values) {
      qkv[8 * 8] = v;  // the first K row, which nothing scales
      const auto blob = pack(p, {.qkv_weight = qkv.data(), .out_weight = out.data()});
      const auto got = read<std::uint16_t>(blob, p.weights().qkv() + 2 * layout::core_index(48, 16, 0));
      int exponent;
      std::frexp(v, &exponent);
      const int unit = element == Element::bf16 ? exponent - 8 : std::max(exponent - 11, -24);
      const double expected = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(v), -unit)), unit);
      EXPECT_EQ(element == Element::bf16 ? widen_bf16(got) : widen_f16(got), expected) << v;
    }
  }
}

}  // namespace
}  // namespace warpweave::cuda::resident
