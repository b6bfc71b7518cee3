// Attention of one head over the keys of a sequence, in chunks of 64, with a running softmax.
#pragma once

#include "ptx/grid.cuh"
#include "ptx/math.cuh"
#include "resident/block_heads.cuh"

namespace warpweave {

template <class S, bool Check>
struct BlockAttention : BlockHeads<S, Check> {
  using Base = BlockHeads<S, Check>;
  using Base::args;
  using Base::base;
  using Base::c;
  using Base::chunk;
  using Base::g;
  using Base::group_token;
  using Base::head_n;
  using Base::hs;
  using Base::key_bits;
  using Base::plan;
  using Base::start_head;
  using Base::tile_token;
  using Base::tiles;
  using Base::tokens;
  using Base::warp;
  using Base::wgmma_scores;
  using typename Base::T;

  // Running softmax of a tile: this lane's share of the sums of weights, and the largest scores.
  struct Softmax {
    float sum[2], top[2];
  };

  // Scores s of keys from .. from + chunk - 1 of the sequence that begins at token `first` become weights p;
  // o is rescaled where a maximum moves. Without Max the largest score is not subtracted.
  template <bool Max>
  __device__ __forceinline__ void weigh(float (&s)[chunk / 8][4], u32 (&p)[chunk / 16][4],
                                        float (&o)[head_n][4], Softmax& running, int first, int from,
                                        int row) const {
    if constexpr (Check) {
#pragma unroll
      for (int i = 0; i < chunk / 16; ++i) {
        const u32 bits = key_bits(first + from + 16 * i) >> (2 * c);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int key = from + 16 * i + j / 4 * 8 + 2 * c + j % 2;
          const bool seen = (bits >> (j / 4 * 8 + j % 2) & 1) && (!S::causal || key <= row + j / 2 % 2 * 8);
          if (!seen) s[2 * i + j / 4][j % 4] = minus_infinity();
        }
      }
    }
    if constexpr (Max) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float m = running.top[half];
#pragma unroll
        for (int i = 0; i < chunk / 8; ++i) m = fmaxf(m, fmaxf(s[i][2 * half], s[i][2 * half + 1]));
        m = quad_max(m);
        const float shift =
            S::mask && m == minus_infinity() ? 0 : m;  // no key yet: every weight is exp2(-inf) = 0
        if (S::slot > chunk) {
          const float scale = exp2_approx(running.top[half] - shift);
          running.sum[half] *= scale;
#pragma unroll
          for (int i = 0; i < head_n; ++i) o[i][2 * half] *= scale, o[i][2 * half + 1] *= scale;
        }
        running.top[half] = m;
#pragma unroll
        for (int i = 0; i < chunk / 8; ++i) s[i][2 * half] -= shift, s[i][2 * half + 1] -= shift;
      }
    }
    float sum[2][2] = {{0, 0}, {0, 0}};
#pragma unroll
    for (int i = 0; i < chunk / 16; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* e = s[2 * i + j / 2] + j % 2 * 2;
        const float a = exp2_approx(e[0]), b = exp2_approx(e[1]);
        sum[j % 2][0] += a, sum[j % 2][1] += b;
        p[i][j] = Pair<T>::pack(a, b);
      }
    running.sum[0] += sum[0][0] + sum[0][1];
    running.sum[1] += sum[1][0] + sum[1][1];
  }

  // O of all tiles, divided by the sum of weights. Tiles take turns: while one is weighed, products of the
  // others are under way. Where Ahead, the product of the next head's Q, K and V into `next` is sent for
  // behind the first scores. Without Max, returns whether sums of weights stayed in range for all that must
  // decide together.
  template <bool Ahead, bool Max>
  __device__ __forceinline__ bool attend(u32 (&result)[tiles][hs][4], const u32 (&q)[tiles][hs][4], int head,
                                         float (*next)[4], u32 next_matrix) const {
    float o[tiles][head_n][4];
    Softmax running[tiles];
    int end = Check ? args.length : S::slot;
    if constexpr (S::causal && S::slot > chunk) {  // keys that are in the future of all tokens of the group
      int last = 0;
#pragma unroll
      for (int t = 0; t < tiles; ++t) last = max(last, group_token(t) % S::slot + 64);
      if (S::slot % 64 == 0) end = min(end, last);
    }
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
#pragma unroll
      for (int i = 0; i < head_n; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) o[t][i][j] = 0;
      running[t] = {{0, 0}, {minus_infinity(), minus_infinity()}};
    }
#pragma unroll 1
    for (int from = 0; from < (S::slot == chunk ? 1 : end); from += chunk) {
      float s[tiles][chunk / 8][4];
      u32 p[tiles][chunk / 16][4];
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        const int first = tile_token(t) / S::slot * S::slot;
        Base::template multiply_all<chunk, hs, tokens / 8 * layout::core_pair_bytes, wgmma_scores, false>(
            s[t], q[t], base + plan.key(head) + (first + from) / 8 * layout::core_pair_bytes);
      }
      if constexpr (Ahead) start_head(next, 0, head + 1, next_matrix);
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        const int token = tile_token(t), first = token / S::slot * S::slot;
        Base::template wait<tiles - 1 + Ahead, wgmma_scores>();
        weigh<Max>(s[t], p[t], o[t], running[t], first, from, token - first + g);
        Base::template multiply_all<S::head_width, chunk / 16, head_n * layout::core_pair_bytes, wgmma_scores,
                                    true>(
            o[t], p[t], base + plan.value(head) + (first + from) / 16 * head_n * layout::core_pair_bytes);
      }
      Base::template wait<0, wgmma_scores>();
    }
    bool fine = true;
#pragma unroll
    for (int t = 0; t < tiles; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        running[t].sum[half] = quad_sum(running[t].sum[half]);
        fine = fine && sum_in_range<T>(running[t].sum[half]);
      }
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
      float inverse[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        inverse[half] = reciprocal_approx(running[t].sum[half]);
        if (S::mask && running[t].sum[half] == 0) inverse[half] = 0;
      }
#pragma unroll
      for (int s = 0; s < hs; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          result[t][s][i] = Pair<T>::pack(o[t][2 * s + i / 2][i % 2 * 2] * inverse[i % 2],
                                          o[t][2 * s + i / 2][i % 2 * 2 + 1] * inverse[i % 2]);
    }
    if constexpr (Max) return true;
    if constexpr (wgmma_scores) return !named_barrier_any(1 + warp / 4, 128, !fine);
    return __all_sync(0xffffffffu, fine);
  }

  // The same with the maximum where it is needed: always where a row may have no key, else when sums left the
  // range.
  template <bool Ahead>
  __device__ __forceinline__ void attend_safely(u32 (&result)[tiles][hs][4], const u32 (&q)[tiles][hs][4],
                                                int head, float (*next)[4], u32 next_matrix) const {
    if constexpr (S::mask) {
      attend<Ahead, true>(result, q, head, next, next_matrix);
    } else {
      if (!attend<Ahead, false>(result, q, head, next, next_matrix))
        attend<false, true>(result, q, head, nullptr, 0);
    }
  }
};

}  // namespace warpweave
