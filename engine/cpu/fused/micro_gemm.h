// Matrix products on packed operands: C = A B + bias (+ residual), the innermost loops of everything here.
//
// A tile of C, up to kTileRows rows by kTileVectors vectors, lives in registers while the sum runs over k:
// each step loads one row of B's panel and broadcasts one number of each row of A. Every element of C is one
// chain of fused multiply-adds in the order of k, so its bits do not depend on the tile that it falls in.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "cpu/fused/kernels.h"

namespace warpweave::cpu::fused::WARPWEAVE_ISA {

constexpr int kPanel = kTileVectors * kLanes;  // columns of a panel of B
// Chains longer than this are cut and their sums added: rounding errors grow with the length of a chain.
constexpr std::int64_t kChain = 128;
constexpr std::int64_t kLine = 16;  // floats of a cache line

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

// acc = A[0 .. M)[k0 .. k1) times b, whose rows (of N vectors) start at k0. Each step also asks for the next
// cache line from `ahead` on, unless that is null at compile time.
template <int M, int N, class A, class Ahead = std::nullptr_t>
WARPWEAVE_INLINE void multiply(V (&acc)[M][N], const A a, const float* b, std::int64_t k0, std::int64_t k1,
                               Ahead ahead = nullptr) {
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) acc[i][j] = zero();
#pragma GCC unroll 2
  for (std::int64_t k = k0; k < k1; ++k, b += N * kLanes) {
    if constexpr (std::is_pointer_v<Ahead>) __builtin_prefetch(ahead), ahead += kLine;
    V row[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) row[j] = load(b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      const V x = broadcast(*a.at(i, k));
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) acc[i][j] = fma(x, row[j], acc[i][j]);
    }
  }
}

// One tile of the product of `g`: rows [i0, i0 + M), columns from n0 on, for the part [k0, k1) of the sums.
// The first part brings bias and residual along, the others add to what is there.
// With Ahead = std::nullptr_t it asks for nothing, which is a load less in eleven, and `ahead` is left alone.
template <int M, int N, class Ahead>
static void gemm_tile(const Gemm& g, std::int64_t i0, std::int64_t n0, std::int64_t k0, std::int64_t k1,
                      const float* b, const float* ahead) {
  V acc[M][N];
  const RowMajor a{g.a + i0 * g.a_stride, g.a_stride};
  if constexpr (std::is_pointer_v<Ahead>)
    multiply<M, N>(acc, a, b, k0, k1, ahead);
  else
    multiply<M, N>(acc, a, b, k0, k1);
  const float* before = k0 == 0 ? g.residual : g.c;
  if (k0 == 0) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      const V bias = load(g.b->bias + n0 + j * kLanes);  // padded to whole panels
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) acc[i][j] = add(acc[i][j], bias);
    }
  }
  const std::int64_t columns = g.b->outputs - n0;
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
    const std::int64_t at = g.rows[i0 + i] + n0;
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      const std::int64_t left = columns - j * kLanes;
      V y = acc[i][j];
      if (left >= kLanes) {
        if (before) y = add(y, load(before + at + j * kLanes));
        store(g.c + at + j * kLanes, y);
      } else {
        if (before) y = add(y, load_part(before + at + j * kLanes, left));
        store_part(g.c + at + j * kLanes, y, left);
      }
    }
  }
}

using GemmTile = void (*)(const Gemm&, std::int64_t, std::int64_t, std::int64_t, std::int64_t, const float*,
                          const float*);

template <class Counts = std::make_integer_sequence<int, kTileRows * kTileVectors>>
struct GemmTiles;
template <int... I>
struct GemmTiles<std::integer_sequence<int, I...>> {
  static constexpr GemmTile asking[] = {gemm_tile<I % kTileRows + 1, I / kTileRows + 1, const float*>...};
  static constexpr GemmTile plain[] = {gemm_tile<I % kTileRows + 1, I / kTileRows + 1, std::nullptr_t>...};
};
// Tiles of all sizes up to the full one are in tables, at this index.
WARPWEAVE_INLINE std::int64_t tile_index(std::int64_t rows, std::int64_t vectors) {
  return (vectors - 1) * kTileRows + rows - 1;
}

// Calls body(first, count) for blocks of at most kTileRows that cover [0, m), as equal as can be.
template <class Body>
WARPWEAVE_INLINE void row_blocks(std::int64_t m, const Body& body) {
  const std::int64_t blocks = (m + kTileRows - 1) / kTileRows;
  const std::int64_t rows = m / blocks, longer = m % blocks;
  std::int64_t first = 0;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t count = rows + (b < longer);
    body(first, count);
    first += count;
  }
}

// While a part of B is multiplied with all rows of A, the part after it comes nearer: weights that the
// second-level cache does not hold would cost a fifth of the time otherwise.
static void gemm(const Gemm& g) {
  const PackedMatrix& m = *g.b;
  const float* b = m.values;
  for (std::int64_t n0 = 0; n0 < m.outputs; n0 += kPanel) {
    const std::int64_t left = m.outputs - n0;
    const std::int64_t vectors = left >= kPanel ? kTileVectors : (left + kLanes - 1) / kLanes;
    const std::int64_t row = vectors * kLanes, lines = row > kLine ? row / kLine : 1;
    for (std::int64_t k0 = 0; k0 < m.inputs; k0 += kChain) {
      const std::int64_t k1 = k0 + kChain < m.inputs ? k0 + kChain : m.inputs;
      const bool last = left <= kPanel && k1 == m.inputs;
      const float* next = m.cached ? nullptr : last ? m.next : b + (k1 - k0) * row;
      std::int64_t block = 0;
      row_blocks(
          g.m, [&](std::int64_t i0, std::int64_t rows) __attribute__((always_inline)) {
            // The first blocks of rows ask for all of the next part.
            const bool asks = next && block < lines;
            const float* ahead = asks ? next + block * (k1 - k0) * kLine : nullptr;
            const auto& tiles = asks ? GemmTiles<>::asking : GemmTiles<>::plain;
            tiles[tile_index(rows, vectors)](g, i0, n0, k0, k1, b, ahead);
            ++block;
          });
      b += (k1 - k0) * row;
    }
  }
}

}  // namespace warpweave::cpu::fused::WARPWEAVE_ISA
