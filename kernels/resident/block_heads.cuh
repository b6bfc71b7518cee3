// Q, K and V of one head: products of the tokens by the head's weights, RoPE, and where they go. Q stays in
// registers, K and V go to shared memory (V transposed), for all warps that share the sequence.
#pragma once

#include "resident/block_products.cuh"

namespace warpweave {

template <class S, bool Check>
struct BlockHeads : BlockProducts<S, Check> {
  using Base = BlockProducts<S, Check>;
  using Base::args;
  using Base::base;
  using Base::c;
  using Base::g;
  using Base::head_n;
  using Base::hs;
  using Base::key_bits;
  using Base::lane;
  using Base::plan;
  using Base::qkv_n;
  using Base::tile_token;
  using Base::tiles;
  using Base::tokens;
  using Base::whole_head;
  using typename Base::T;

  __device__ __forceinline__ void rotate(float (*d)[4], int token) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = min((token + 8 * half + g) % S::slot, args.length - 1);
      const float2* r = reinterpret_cast<const float2*>(args.rotation) + t * (S::head_width / 2) + c;
#pragma unroll
      for (int i = 0; i < head_n; ++i) {
        const float2 turn = r[4 * i];
        const float a = d[i][2 * half], b = d[i][2 * half + 1];
        d[i][2 * half] = a * turn.x - b * turn.y;
        d[i][2 * half + 1] = b * turn.x + a * turn.y;
      }
    }
  }

  // What becomes of Q (part 0), K (1) and V (2) of a tile.
  template <int Part>
  __device__ __forceinline__ void finish(float (*d)[4], u32 (&q)[hs][4], int tile, int head) const {
    const int token = tile_token(tile);
    if constexpr (S::rope && Part < 2) rotate(d, token);
    if constexpr (S::mask &&
                  Part == 2) {  // a masked token may hold anything, and zero times that need not be zero
      const u32 bits = key_bits(token);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (!(bits >> (g + 8 * half) & 1)) {
#pragma unroll
          for (int i = 0; i < head_n; ++i) d[i][2 * half] = d[i][2 * half + 1] = 0;
        }
    }
#pragma unroll
    for (int s = 0; s < hs; ++s) {
      u32 r[4];  // channel halves 0, 1 of rows g, g + 8 in the order of A, of K's and of V's core matrices
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half_of_channels = Part == 1 ? i % 2 : i / 2, half_of_rows = Part == 1 ? i / 2 : i % 2;
        r[i] = Pair<T>::pack(d[2 * s + half_of_channels][2 * half_of_rows],
                             d[2 * s + half_of_channels][2 * half_of_rows + 1]);
      }
      if constexpr (Part == 0) {
#pragma unroll
        for (int i = 0; i < 4; ++i) q[s][i] = r[i];
      } else if constexpr (Part == 1) {
        const u32 at = base + plan.key(head) + (s * (tokens / 8) + token / 8) * layout::core_pair_bytes;
#pragma unroll
        for (int i = 0; i < 4; ++i) store_shared(at + i * 128 + lane * 4, r[i]);
      } else {
        const u32 at = base + plan.value(head) + (token / 16 * head_n + 2 * s) * layout::core_pair_bytes;
#if __CUDA_ARCH__ >= 900
        store_matrices_transposed(at + lane * 16, r);
#else
#pragma unroll
        for (int i = 0; i < 4; ++i) store_shared(at + i * 128 + lane * 4, transpose_matrix(r[i]));
#endif
      }
    }
  }

  // Q, K and V of a tile for one head: starts the product, whose `matrix` is the head's.
  __device__ __forceinline__ void start_head(float (*d)[4], int tile, int head, u32 matrix) const {
    const u32 bias = base + plan.bias() + head * 3 * S::head_width * 4;
    Base::template start<S::q_bias, S::head_width>(d, bias, c);
    Base::template start<S::k_bias, S::head_width>(d + head_n, bias + S::head_width * 4, c);
    Base::template start<S::v_bias, S::head_width>(d + 2 * head_n, bias + S::head_width * 8, c);
    Base::template project<3 * S::head_width, 3 * S::head_width>(d, tile, matrix, 0);
  }

  __device__ __forceinline__ void finish_head(float (*d)[4], u32 (&q)[hs][4], int tile, int head) const {
    finish<0>(d, q, tile, head);
    finish<1>(d + head_n, q, tile, head);
    finish<2>(d + 2 * head_n, q, tile, head);
  }

  template <int Part, bool Bias>
  __device__ __forceinline__ void project_part(u32 (&q)[hs][4], int tile, int head, u32 matrix) const {
    float d[head_n][4];
    Base::template start<Bias, S::head_width>(d, base + plan.bias() + (head * 3 + Part) * S::head_width * 4,
                                              c);
    Base::template project<S::head_width, 3 * S::head_width>(d, tile, matrix, Part * head_n);
    Base::template wait<0, S::wgmma>();
    finish<Part>(d, q, tile, head);
  }

  // All of Q, K and V of this warp's tiles for one head.
  __device__ __forceinline__ void project_head(u32 (&q)[tiles][hs][4], int head, u32 matrix) const {
    if constexpr (whole_head) {
      if constexpr (S::wgmma && tiles == 2) {
        float d[2][qkv_n][4];
        start_head(d[0], 0, head, matrix);
        start_head(d[1], 1, head, matrix);
        Base::template wait<1, true>();
        finish_head(d[0], q[0], 0, head);
        Base::template wait<0, true>();
        finish_head(d[1], q[1], 1, head);
      } else {
#pragma unroll
        for (int t = 0; t < tiles; ++t) {
          float d[qkv_n][4];
          start_head(d, t, head, matrix);
          Base::template wait<0, S::wgmma>();
          finish_head(d, q[t], t, head);
        }
      }
    } else {
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        project_part<0, S::q_bias>(q[t], t, head, matrix);
        project_part<1, S::k_bias>(q[t], t, head, matrix);
        project_part<2, S::v_bias>(q[t], t, head, matrix);
      }
    }
  }
};

}  // namespace warpweave
