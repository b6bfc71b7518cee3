// Norm and q, k, v of wide tokens for compute capability 9.0: y = norm(x) W^T + bias, from the grid to dense tokens.
//
//   x [cell, channel], W [row, channel], y [token, row], 16-bit elements
//
// An item (wide_product.cuh) is 128 tokens by 3 HEAD rows of W; HEAD has no other meaning here. Tokens are taken in the
// order of memory, whether their layer runs along rows or along columns.
//
// Limit: flops, 2 tokens rows channels.
#pragma once

#include "long/wide_product.cuh"

namespace warpweave::kernels::long_attention {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class F>
struct WideStore : WideProduct<F> {
  using Base = WideProduct<F>;
  using typename Base::Bias;
  using typename Base::Gains;
  using typename Base::Item;
  using typename Base::Product;
  using Base::at, Base::p, Base::group, Base::warp, Base::lane, Base::piece;
  static constexpr int TILES = F::tiles;  // of 8 columns in a panel, of which there are three

  // By way of the warp's own rows of shared memory.
  __device__ __forceinline__ void store(const Product (&d)[2], const Gains& g, const Item& item) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Base::wait_for_stores();
#pragma unroll
      for (int panel = 0; panel < 3; ++panel) {
        const u32 rows = at.own(group) + panel * (64 * 128) + warp() * (16 * 128);
        Bias bias[TILES / 2][2];
#pragma unroll
        for (int n = 0; n < TILES; ++n) Base::take_bias(bias[n / 2][n % 2], panel * TILES + n);
#pragma unroll
        for (int n = 0; n < TILES; n += 2) {
          u32 v[4];
          Base::finish(v, d, g, bias[n / 2], half, panel * TILES + n);
          store_matrices(piece(rows, lane() % 16, n + lane() / 16), v);
        }
        Base::store_rows(rows, item, half, (item.column * 3 + panel) * F::head);
      }
    }
  }

  __device__ __forceinline__ void run() const {
    Base::for_items([&](u32 turn, const Item& item) {
      Product d[2];
      Gains g;
      Base::multiply(d, g, turn, item);
      store(d, g, item);
    });
  }
};

#endif

template <class T, int HEAD>
__global__ void __launch_bounds__(WidePlan::kThreads, 1) wide_store(const __grid_constant__ WideParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  using F = WideForm<T, HEAD, 0>;
  run_wide<F, WideStore<F>>(p, memory);
#endif
}

}  // namespace warpweave::kernels::long_attention
