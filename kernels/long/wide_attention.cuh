// Norm, q, k, v and attention of short sequences in one kernel, for compute capability 9.0: o = softmax(scale q k^T) v with
// q | k | v = norm(x) W^T + bias, for each sequence and head.
//
//   x [cell, channel], W [3 heads HEAD, channel], o [token, heads, HEAD], 16-bit elements
//
// An item (wide_product.cuh) is a head of 128 tokens, which are whole sequences: one of up to 128, two of up to 64, four of
// up to 32, eight of up to 16. The group that has their q, k and v in its registers rounds them, puts k and v into shared
// memory, and attends, the halves of its tokens side by side. q, k and v are never in global memory.
//
// Softmax subtracts the maximum of the row, whose scores are all there. Rows past the end of a sequence have no weight as
// keys, and their results are not stored. A sequence's bits depend on nothing beside it, not even on what is not finite.
//
// Shared memory: wide_params.h. Limit: flops of the product, 6 tokens heads HEAD channels; rows that are no tokens count
// too.
#pragma once

#include "long/wide_product.cuh"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"

namespace warpweave::kernels::long_attention {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class F>
struct WideAttention : WideProduct<F> {
  using Base = WideProduct<F>;
  using typename Base::Bias;
  using typename Base::Gains;
  using typename Base::Item;
  using typename Base::Product;
  using T = typename F::T;
  using Base::at, Base::p, Base::group, Base::warp, Base::lane, Base::piece;
  // Keys that a row's scores have. Where a warp's rows are of one of several sequences of 64 rows, it multiplies by
  // itself, so that what is not finite in one does not reach the others by way of weights of zero.
  static constexpr int HEAD = F::head, TILES = F::tiles, KEYS = F::slot;
  static constexpr bool ALONE = KEYS < 64;
  using Query = u32[HEAD / 16][4];
  using Scores = float[KEYS / 8][4];
  using Weights = u32[KEYS / 16][4];
  using Output = float[TILES][4];
  using Rows = float[2];  // of the rows lane / 4 and lane / 4 + 8 of a warp's 16

  // Those that share keys and values.
  __device__ __forceinline__ void meet_sharers() const {
    if constexpr (KEYS == 16)
      __syncwarp();
    else
      Base::meet();
  }
  // First row of the keys of half of the tokens, or of a warp's 16.
  static __device__ __forceinline__ int first_key(int half) {
    return KEYS > 64 ? 0 : half * 64 + (ALONE ? warp() * 16 / KEYS * KEYS : 0);
  }
  __device__ __forceinline__ u32 keys() const { return for_now(at.own(group)); }
  __device__ __forceinline__ u32 values() const { return for_now(at.own(group) + WidePlan::kTokens * 128); }
  // Keeps the compiler from finding addresses ahead, for which there are no registers during the product.
  static __device__ __forceinline__ u32 for_now(u32 address) {
    asm volatile("" : "+r"(address));
    return address;
  }

  __device__ __forceinline__ void put_keys_and_values(const Product (&d)[2], const Gains& g) const {
    constexpr int AHEAD = TILES % 4 == 0 ? 4 : TILES;  // tiles whose bias is there at a time
#pragma unroll
    for (int part = 1; part < 3; ++part) {
      const u32 base = part == 1 ? keys() : values();
#pragma unroll
      for (int first = 0; first < TILES; first += AHEAD) {
        Bias bias[AHEAD / 2][2];
#pragma unroll
        for (int n = 0; n < AHEAD; ++n) Base::take_bias(bias[n / 2][n % 2], part * TILES + first + n);
#pragma unroll
        for (int n = 0; n < AHEAD; n += 2) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            u32 v[4];
            Base::finish(v, d, g, bias[n / 2], half, part * TILES + first + n);
            store_matrices(piece(base, half * 64 + warp() * 16 + lane() % 16, first + n + lane() / 16), v);
          }
        }
      }
    }
  }
  __device__ __forceinline__ void take_queries(Query (&q)[2], const Product (&d)[2], const Gains& g) const {
    Bias bias[HEAD / 16][2];
#pragma unroll
    for (int n = 0; n < TILES; ++n) Base::take_bias(bias[n / 2][n % 2], n);
#pragma unroll
    for (int i = 0; i < HEAD / 16; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) Base::finish(q[half][i], d, g, bias[i], half, 2 * i);
    }
  }

  // Not waited for.
  __device__ __forceinline__ void multiply_keys(Scores& s, const Query& q, int half) const {
    if constexpr (ALONE) {
      const int own = first_key(half) + lane() / 16 * 8 + lane() % 8;
      const u32 base = keys();
#pragma unroll
      for (int n = 0; n < KEYS / 8; n += 2) {
#pragma unroll
        for (int r = 0; r < 4; ++r) s[n][r] = s[n + 1][r] = 0.0f;
#pragma unroll
        for (int i = 0; i < HEAD / 16; ++i) {
          u32 k[4];
          load_matrices(k, piece(base, own + n * 8, 2 * i + lane() / 8 % 2));
          mma<T>(s[n], q[i], k[0], k[1]);
          mma<T>(s[n + 1], q[i], k[2], k[3]);
        }
      }
    } else {
      const u64 k = swizzled_rows<128>(keys() + first_key(half) * 128);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < HEAD / 16; ++i) {
        if (i == 0)
          Wgmma<T, KEYS>::template registers<false>(s, q[i], k);
        else
          Wgmma<T, KEYS>::template registers<true>(s, q[i], k + 2 * i);
      }
      wgmma_commit();
    }
  }
  __device__ __forceinline__ void multiply_values(Output& o, const Weights& w, int half) const {
    if constexpr (ALONE) {
      const int own = first_key(half) + lane() % 16;
      const u32 base = values();
#pragma unroll
      for (int n = 0; n < TILES; n += 2) {
#pragma unroll
        for (int r = 0; r < 4; ++r) o[n][r] = o[n + 1][r] = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i) {
          u32 v[4];
          load_matrices_transposed(v, piece(base, own + i * 16, n + lane() / 16));
          mma<T>(o[n], w[i], v[0], v[1]);
          mma<T>(o[n + 1], w[i], v[2], v[3]);
        }
      }
    } else {
      const u64 v = swizzled_rows<128>(values() + first_key(half) * 128, 16);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < KEYS / 16; ++i) {
        if (i == 0)
          Wgmma<T, HEAD>::template registers<false, true>(o, w[i], v);
        else
          Wgmma<T, HEAD>::template registers<true, true>(o, w[i], v + i * 128);
      }
      wgmma_commit();
    }
  }
  // All but `Pending` products.
  template <int Pending, int N>
  static __device__ __forceinline__ void wait_for(float (&d)[N][4]) {
    if constexpr (!ALONE) {
      wgmma_wait<Pending>();
      wgmma_settle(d);
    }
  }

  // -infinity for keys past the end.
  __device__ __forceinline__ void select(Scores& s) const {
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (8 * n + r % 2 + lane() % 4 * 2 >= p.length) s[n][r] = minus_infinity();
      }
    }
  }

  // Scores to weights; `gain` is one over their sums. Of so many halves of the tokens step by step, since a warp is alone
  // with its latencies.
  template <int HALVES>
  __device__ __forceinline__ void weigh(Weights* w, Rows* gain, Scores* s) const {
    const float factor = p.scale * 1.4426950408889634f;  // to base 2
    float most[HALVES][2], sum[HALVES][2];
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
      if (p.length < KEYS) select(s[half]);
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
      for (int half = 0; half < HALVES; ++half) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float larger = fmaxf(s[half][n][2 * r], s[half][n][2 * r + 1]);
          most[half][r] = n == 0 ? larger : fmaxf(most[half][r], larger);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
#pragma unroll
      for (int r = 0; r < 2; ++r) most[half][r] = quad_max(most[half][r]) * factor;
    }
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
      for (int half = 0; half < HALVES; ++half) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float* const v = s[half][n] + 2 * r;
          v[0] = exp2_approx(v[0] * factor - most[half][r]);
          v[1] = exp2_approx(v[1] * factor - most[half][r]);
          sum[half][r] = n == 0 ? v[0] + v[1] : sum[half][r] + (v[0] + v[1]);
          w[half][n / 2][n % 2 * 2 + r] = Pair<T>::pack(v[0], v[1]);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
#pragma unroll
      for (int r = 0; r < 2; ++r) gain[half][r] = reciprocal_approx(quad_sum(sum[half][r]));
    }
  }

  // By way of the warp's own rows of the keys, which nobody needs any more.
  __device__ __forceinline__ void store(const Output& o, const Rows& gain, const Item& item, int half) const {
    const int own = half * 64 + warp() * 16;
    const u32 base = keys();
#pragma unroll
    for (int n = 0; n < TILES; n += 2) {
      u32 r[4];
#pragma unroll
      for (int m = 0; m < 4; ++m)
        r[m] = Pair<T>::pack(o[n + m / 2][m % 2 * 2] * gain[m % 2], o[n + m / 2][m % 2 * 2 + 1] * gain[m % 2]);
      store_matrices(piece(base, own + lane() % 16, n + lane() / 16), r);
    }
    Base::store_rows(base + own * 128, item, half, item.column * HEAD);
  }

  __device__ __forceinline__ void attend(const Product (&d)[2], const Gains& g, const Item& item) const {
    Query q[2];
    Scores s[2];
    Weights w[2];
    Rows gain[2];
    Output o[2];
    Base::wait_for_stores();
    put_keys_and_values(d, g);
    take_queries(q, d, g);
    if constexpr (!ALONE) fence_async_proxy();
    meet_sharers();
    multiply_keys(s[0], q[0], 0);
    multiply_keys(s[1], q[1], 1);
    if constexpr (KEYS > 64) {  // as registers suffice
      wait_for<1>(s[0]);
      weigh<1>(w, gain, s);
      multiply_values(o[0], w[0], 0);
      wait_for<1>(s[1]);
      weigh<1>(w + 1, gain + 1, s + 1);
    } else {
      wait_for<0>(s[0]);
      wait_for<0>(s[1]);
      weigh<2>(w, gain, s);
      multiply_values(o[0], w[0], 0);
    }
    multiply_values(o[1], w[1], 1);
    meet_sharers();  // the keys have been read
    wait_for<1>(o[0]);
    store(o[0], gain[0], item, 0);
    wait_for<0>(o[1]);
    store(o[1], gain[1], item, 1);
  }

  __device__ __forceinline__ void run() const {
    Base::for_items([&](u32 turn, const Item& item) {
      Product d[2];
      Gains g;
      Base::multiply(d, g, turn, item);
      attend(d, g, item);
    });
  }
};

#endif

template <class T, int HEAD, int SLOT>
__global__ void __launch_bounds__(WidePlan::kThreads, 1) wide_attention(const __grid_constant__ WideParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  using F = WideForm<T, HEAD, SLOT>;
  run_wide<F, WideAttention<F>>(p, memory);
#endif
}

}  // namespace warpweave::kernels::long_attention
