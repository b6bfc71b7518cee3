// The attention of one panel of queries, one head: online softmax (Milakov and Gimelshein 2018, Dao et al.
// 2022) with everything transposed, so that queries are the lanes of vectors and keys go downwards:
//
//   S [key][query] = K Qt          Qt [channel][query], scaled
//   m, P = 2^(S - m), l            per lane: no sum or maximum goes across a vector
//   O [channel][query] += Vt P
//
// K and V are read in the layout in which the projection left them; only Q and O, small, are turned. Keys
// come in blocks of kKeyBlock: S of a block stays in the first-level cache.
#pragma once

#include "cpu/fused/exp.h"
#include "cpu/fused/micro_gemm.h"
#include "cpu/fused/transpose.h"

namespace warpweave::cpu::fused::WARPWEAVE_ISA {

constexpr float kMinusInfinity = -__builtin_inff();

// Rows [j0, j0 + M) of a block's S, and their maximum into m.
template <int M, int N>
static void score_tile(const Attention& g, std::int64_t j0, const float* q, float* s, V* m) {
  V acc[M][N];
  multiply<M, N>(acc, RowMajor{g.k + j0 * g.kv_stride, g.kv_stride}, q, 0, g.head_dim);
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j) {
    V top = m[j];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      store(s + (i * N + j) * kLanes, acc[i][j]);
      top = max(top, acc[i][j]);
    }
    m[j] = top;
  }
}

// Channels [c0, c0 + M) of O = O * decay + (V of the block)t P; the first block has nothing to decay.
template <int M, int N>
static void value_tile(const Attention& g, std::int64_t j0, std::int64_t keys, std::int64_t c0,
                       const float* p, const V* decay, float* o) {
  V acc[M][N];
  multiply<M, N>(acc, KMajor{g.v + j0 * g.kv_stride + c0, g.kv_stride}, p, 0, keys);
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      float* to = o + (i * N + j) * kLanes;
      store(to, decay ? fma(load(to), decay[j], acc[i][j]) : acc[i][j]);
    }
  }
}

using ScoreTile = void (*)(const Attention&, std::int64_t, const float*, float*, V*);
using ValueTile = void (*)(const Attention&, std::int64_t, std::int64_t, std::int64_t, const float*, const V*,
                           float*);
template <class Counts = std::make_integer_sequence<int, kTileRows * kTileVectors>>
struct AttentionTiles;
template <int... I>
struct AttentionTiles<std::integer_sequence<int, I...>> {
  static constexpr ScoreTile scores[] = {score_tile<I % kTileRows + 1, I / kTileRows + 1>...};
  static constexpr ValueTile values[] = {value_tile<I % kTileRows + 1, I / kTileRows + 1>...};
};

// Takes away keys after their query, and the maximum anew.
template <int N>
WARPWEAVE_INLINE void hide_future(const Attention& g, std::int64_t j0, std::int64_t keys, float* s, V* m) {
  float lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = float(i);
  for (int j = 0; j < N; ++j) {
    const V query =
        add(load(lane), broadcast(float(j * kLanes)));  // relative to first_query: small and exact
    V top = broadcast(kMinusInfinity);
    for (std::int64_t i = 0; i < keys; ++i) {
      const std::int64_t after = g.key_positions[j0 + i] - g.first_query;
      float* at = s + (i * N + j) * kLanes;
      const V x = after <= 0 ? load(at)
                             : where_less(query, broadcast(float(after < kPanel ? after : kPanel)),
                                          broadcast(kMinusInfinity), load(at));
      store(at, x);
      top = max(top, x);
    }
    m[j] = top;
  }
}

// S -> P = 2^(S - m) in place; returns the sums of the lanes. The sums are of unrounded numbers.
template <int N, Rounding R>
WARPWEAVE_INLINE void exponentials(float* s, std::int64_t keys, const V* m, V* sums) {
  V shift[N], total[N];
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j) shift[j] = m[j], total[j] = zero();
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < keys; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      float* at = s + (i * N + j) * kLanes;
      V p = exp2(sub(load(at), shift[j]));
      total[j] = add(total[j], p);
      if constexpr (R == Rounding::bf16) p = round_bf16(p);
      if constexpr (R == Rounding::fp16) p = round_fp16(p);
      store(at, p);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j) sums[j] = total[j];
}

// O [channel][query] -> [query][channel] through f, which saves a pass of its own for what f does.
template <int N, class F>
WARPWEAVE_INLINE void turn_output(const Attention& g, const float* o, const F& f) {
  transpose_block(o, N * kLanes, g.head_dim, g.queries, g.out, g.out_stride, g.head_dim, f);
}

template <int N>
static void attend_panel(const Attention& g) {
  float* q = g.scratch;                    // [head_dim][N * kLanes]
  float* o = q + g.head_dim * N * kLanes;  // [head_dim][N * kLanes]
  float* s = o + g.head_dim * N * kLanes;  // [kKeyBlock][N * kLanes]
  const V factor = broadcast(g.factor);
  transpose_block(g.q, g.q_stride, g.queries, g.head_dim, q, N * kLanes, N * kLanes,
                  [&](V x, std::int64_t) { return mul(x, factor); });

  V m[N], l[N];
  for (int j = 0; j < N; ++j) m[j] = broadcast(kMinusInfinity), l[j] = zero();
  std::int64_t done = 0;
  for (; done < g.keys; done += kKeyBlock) {
    if (g.key_positions && g.key_positions[done] >= g.first_query + g.queries) break;
    const std::int64_t keys = g.keys - done < kKeyBlock ? g.keys - done : kKeyBlock;
    V top[N], sums[N], decay[N];
    for (int j = 0; j < N; ++j) top[j] = broadcast(kMinusInfinity);
    row_blocks(
        keys, [&](std::int64_t i0, std::int64_t count) __attribute__((always_inline)) {
          AttentionTiles<>::scores[tile_index(count, N)](g, done + i0, q, s + i0 * N * kLanes, top);
        });
    if (g.key_positions && g.key_positions[done + keys - 1] > g.first_query)
      hide_future<N>(g, done, keys, s, top);
    for (int j = 0; j < N; ++j) {
      top[j] = max(top[j], m[j]);
      // A lane that has seen no key yet has a maximum of -inf; S - m must not become inf - inf.
      const V shift = max(top[j], broadcast(-3e38f));
      decay[j] = exp2(sub(max(m[j], broadcast(-3e38f)), shift));
      m[j] = top[j];
      top[j] = shift;
    }
    switch (g.rounding) {
      case Rounding::none:
        exponentials<N, Rounding::none>(s, keys, top, sums);
        break;
      case Rounding::bf16:
        exponentials<N, Rounding::bf16>(s, keys, top, sums);
        break;
      case Rounding::fp16:
        exponentials<N, Rounding::fp16>(s, keys, top, sums);
        break;
    }
    for (int j = 0; j < N; ++j) l[j] = fma(l[j], decay[j], sums[j]);
    row_blocks(
        g.head_dim, [&](std::int64_t c0, std::int64_t count) __attribute__((always_inline)) {
          AttentionTiles<>::values[tile_index(count, N)](g, done, keys, c0, s, done == 0 ? nullptr : decay,
                                                         o + c0 * N * kLanes);
        });
  }

  // 1 / l, and 0 for a query that saw no key at all. NaN sums stay NaN.
  V inverse[N];
  for (int j = 0; j < N; ++j)
    inverse[j] = where_less(l[j], broadcast(1e-37f), zero(), div(broadcast(1.0f), l[j]));
  const auto normalised = [&](V y, std::int64_t query) __attribute__((always_inline)) {
    return done == 0 ? zero() : mul(y, inverse[query / kLanes]);
  };
  switch (g.rounding) {
    case Rounding::none:
      turn_output<N>(g, o, normalised);
      break;
    case Rounding::bf16:
      turn_output<N>(g, o, [&](V y, std::int64_t query) { return round_bf16(normalised(y, query)); });
      break;
    case Rounding::fp16:
      turn_output<N>(g, o, [&](V y, std::int64_t query) { return round_fp16(normalised(y, query)); });
      break;
  }
}

// One key takes all of the probability.
WARPWEAVE_INLINE void attend_one_key(const Attention& g) {
  for (std::int64_t i = 0; i < g.queries; ++i)
    for (std::int64_t c = 0; c < g.head_dim; c += kLanes) {
      const std::int64_t n = g.head_dim - c;
      store_part(g.out + i * g.out_stride + c, load_part(g.v + c, n), n);
    }
}

static void attend(const Attention& g) {
  if (g.keys == 1 && !g.key_positions) return attend_one_key(g);
  const std::int64_t vectors = (g.queries + kLanes - 1) / kLanes;
  if (vectors == 1) return attend_panel<1>(g);
  if (vectors == 2) return attend_panel<2>(g);
  if constexpr (kTileVectors > 2) attend_panel<kTileVectors>(g);
}

}  // namespace warpweave::cpu::fused::WARPWEAVE_ISA
