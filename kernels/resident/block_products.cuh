// Matrix products of a block of the resident kernel: by warps (mma.sync), or by groups of four (wgmma,
// compute capability 9.0), which are under way when the functions here return.
#pragma once

#include "ptx/mma.cuh"
#include "ptx/wgmma.cuh"
#include "resident/block_tokens.cuh"

namespace warpweave {

template <class S, bool Check>
struct BlockProducts : BlockTokens<S, Check> {
  using Base = BlockTokens<S, Check>;
  using Base::base;
  using Base::group_token;
  using Base::lane;
  using Base::plan;
  using Base::tile_token;
  using Base::tokens;
  using typename Base::T;

  // d [16 or 64 rows, N] += tokens of a tile times rows `first_n` * 8 on of a matrix of `Rows` rows. A
  // product of a warpgroup is under way when this returns: wait<Pending> before d is read.
  template <int N, int Rows>
  __device__ __forceinline__ void project(float (*d)[4], int tile, u32 matrix, int first_n) const {
    if constexpr (S::wgmma) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
      const u32 a = core_matrices(base + plan.x() + group_token(tile) / 8 * layout::core_pair_bytes);
      const u32 b = core_matrices(matrix + first_n * layout::core_pair_bytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < S::steps; ++k)
        wgmma_shared<T, N, true>(d, a + k * (tokens / 8 * layout::core_pair_bytes / 16),
                                 b + k * (Rows / 8 * layout::core_pair_bytes / 16));
      wgmma_commit();
#endif
    } else {
#pragma unroll
      for (int k = 0; k < S::steps; ++k) {
        u32 r[4];
        load_matrices(r, base + plan.x() +
                             (k * (tokens / 8) + tile_token(tile) / 8) * layout::core_pair_bytes + lane * 16);
        const u32 a[4] = {r[0], r[2], r[1], r[3]};
        multiply<N>(d, a, matrix + (k * (Rows / 8) + first_n) * layout::core_pair_bytes);
      }
    }
  }

  // Waits until at most `Pending` products of this warpgroup, counted by calls, are under way.
  template <int Pending, bool Group>
  static __device__ __forceinline__ void wait() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if constexpr (Group) wgmma_wait<Pending>();
#endif
  }

  // d [16, N] += a * B^T, B [N, 16] being core matrices from `matrix` on; mma.sync.
  template <int N>
  __device__ __forceinline__ void multiply(float (*d)[4], const u32 (&a)[4], u32 matrix) const {
#pragma unroll
    for (int i = 0; i < N / 16; ++i) {
      u32 b[4];
      load_matrices(b, matrix + i * 512 + lane * 16);
      mma<T>(d[2 * i], a, b[0], b[1]);
      mma<T>(d[2 * i + 1], a, b[2], b[3]);
    }
  }

  // The same for `Steps` steps of k, `Stride` bytes apart, by the warp or (under way on return) by its group;
  // without Add d is set.
  template <int N, int Steps, int Stride, bool Group, bool Add>
  __device__ __forceinline__ void multiply_all(float (*d)[4], const u32 (*a)[4], u32 matrix) const {
    if constexpr (Group) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
      const u32 b = core_matrices(matrix);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < Steps; ++k) {
        if (Add || k > 0)
          wgmma_registers<T, N, true>(d, a[k], b + k * (Stride / 16));
        else
          wgmma_registers<T, N, false>(d, a[k], b + k * (Stride / 16));
      }
      wgmma_commit();
#endif
    } else {
      if constexpr (!Add) {
#pragma unroll
        for (int i = 0; i < N / 8; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) d[i][j] = 0;
      }
#pragma unroll
      for (int k = 0; k < Steps; ++k) multiply<N>(d, a[k], matrix + k * Stride);
    }
  }

  template <bool Present, int N>
  static __device__ __forceinline__ void start(float (*d)[4], u32 bias, int c) {
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
      u32 b[2] = {0, 0};
      if constexpr (Present) load_shared(b, bias + (8 * i + 2 * c) * 4);
      d[i][0] = d[i][2] = __uint_as_float(b[0]);
      d[i][1] = d[i][3] = __uint_as_float(b[1]);
    }
  }
};

}  // namespace warpweave
