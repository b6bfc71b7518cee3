// Matrix products on packed operands: C = A B + bias (+ residual), the innermost loops of everything here.
//
// A tile of C, up to kTileRows rows by one or two vectors, lives in registers while the sum runs over k: each
// step loads one row of B's panel and broadcasts one number of each row of A. Every element of C is one chain
// of fused multiply-adds in the order of k, so its bits do not depend on the tile that it falls in.
#pragma once

#include <utility>

#include "cpu/fused/kernels.h"

namespace warpweave::cpu::fused::WARPWEAVE_ISA {

constexpr int kPanel = 2 * kLanes;  // columns of a panel of B
// Chains longer than this are cut and their sums added: rounding errors grow with the length of a chain.
constexpr std::int64_t kChain = 256;

struct RowMajor {  // A[i][k]
  const float* p;
  std::int64_t stride;
  WARPWEAVE_INLINE_MEMBER const float* at(std::int64_t i, std::int64_t k) const { return p + i * stride + k; }
};
struct KMajor {  // A stored as its transpose, [k][i]
  const float* p;
  std::int64_t stride;
  WARPWEAVE_INLINE_MEMBER const float* at(std::int64_t i, std::int64_t k) const { return p + k * stride + i; }
};

// acc = A[0 .. M)[k0 .. k1) times b, whose rows (of N vectors) start at k0.
template <int M, int N, class A>
WARPWEAVE_INLINE void multiply(V (&acc)[M][N], const A a, const float* b, std::int64_t k0, std::int64_t k1) {
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) acc[i][j] = zero();
#pragma GCC unroll 1
  for (std::int64_t k = k0; k < k1; ++k, b += N * kLanes) {
    V row[N];
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) row[j] = load(b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      const V x = broadcast(*a.at(i, k));
#pragma GCC unroll 2
      for (int j = 0; j < N; ++j) acc[i][j] = fma(x, row[j], acc[i][j]);
    }
  }
}

// The same over all of k, long chains cut.
template <int M, int N, class A>
WARPWEAVE_INLINE void multiply_long(V (&acc)[M][N], const A a, const float* b, std::int64_t k) {
  multiply<M, N>(acc, a, b, 0, k < kChain ? k : kChain);
  if (k <= kChain) return;
  V total[M][N];  // in memory; touched once in kChain steps
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) total[i][j] = acc[i][j];
  for (std::int64_t k0 = kChain; k0 < k; k0 += kChain) {
    multiply<M, N>(acc, a, b + k0 * N * kLanes, k0, k < k0 + kChain ? k : k0 + kChain);
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < N; ++j) total[i][j] = add(total[i][j], acc[i][j]);
  }
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) acc[i][j] = total[i][j];
}

// One tile of the product of `g`: rows [i0, i0 + M), columns from n0 on, of which `columns` exist.
template <int M, int N>
static void gemm_tile(const Gemm& g, std::int64_t i0, std::int64_t n0, const float* b) {
  V acc[M][N];
  multiply_long<M, N>(acc, RowMajor{g.a + i0 * g.a_stride, g.a_stride}, b, g.b->inputs);
  const std::int64_t columns = g.b->outputs - n0;
  const float* bias = g.b->bias + n0;  // padded to whole panels
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
    const std::int64_t at = g.rows[i0 + i] + n0;
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) {
      V y = add(acc[i][j], load(bias + j * kLanes));
      const std::int64_t left = columns - j * kLanes;
      if (left >= kLanes) {
        if (g.residual) y = add(y, load(g.residual + at + j * kLanes));
        store(g.c + at + j * kLanes, y);
      } else if (left > 0) {
        if (g.residual) y = add(y, load_part(g.residual + at + j * kLanes, left));
        store_part(g.c + at + j * kLanes, y, left);
      }
    }
  }
}

using GemmTile = void (*)(const Gemm&, std::int64_t, std::int64_t, const float*);

template <int N, class Counts = std::make_integer_sequence<int, kTileRows>>
struct GemmTiles;
template <int N, int... M>
struct GemmTiles<N, std::integer_sequence<int, M...>> {
  static constexpr GemmTile rows[] = {gemm_tile<M + 1, N>...};  // by the number of rows, less one
};

// Calls body(first, count) for blocks of at most kTileRows that cover [0, m), as equal as can be.
template <class Body>
WARPWEAVE_INLINE void row_blocks(std::int64_t m, const Body& body) {
  const std::int64_t blocks = (m + kTileRows - 1) / kTileRows;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t first = m * b / blocks;
    body(first, int(m * (b + 1) / blocks - first));
  }
}

static void gemm(const Gemm& g) {
  const float* b = g.b->values;
  for (std::int64_t n0 = 0; n0 < g.b->outputs; n0 += kPanel) {
    const bool wide = g.b->outputs - n0 > kLanes;
    row_blocks(
        g.m, [&](std::int64_t i0, int count) __attribute__((always_inline)) {
          (wide ? GemmTiles<2>::rows : GemmTiles<1>::rows)[count - 1](g, i0, n0, b);
        });
    b += g.b->inputs * (wide ? 2 : 1) * kLanes;
  }
}

}  // namespace warpweave::cpu::fused::WARPWEAVE_ISA
