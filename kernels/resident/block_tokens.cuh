// Tokens of a block of the resident kernel: who owns which, how they come in and how results leave.
//
// A block of `warps` warps owns warps * tiles * 16 tokens: one sequence, or several of at most `slot` tokens.
// A warp owns `tiles` tiles of 16; the four warps of a group own 64 neighbouring tokens a tile.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/matrix.cuh"
#include "resident/specification.cuh"
#include "resident/tokens.cuh"

namespace warpweave {

// Without Check every sequence has `slot` tokens, all of them keys of all queries.
template <class S, bool Check>
struct BlockTokens {
  using T = typename S::T;
  static constexpr layout::BlockPlan plan = S::plan;
  static constexpr int tiles = S::tiles, tokens = plan.tokens(), hs = S::head_steps,
                       head_n = S::head_width / 8;
  static constexpr int out_n = S::dim_width / 8, qkv_n = 3 * head_n;
  static constexpr int chunk = S::slot < 64 ? S::slot : 64;  // keys of a step of the softmax
  static_assert(S::slot % chunk == 0, "");
  // Warps that share K and V: a group of four, or the block.
  static constexpr bool by_group = 64 * tiles % S::slot == 0;
  static constexpr bool wgmma_scores = S::wgmma && S::slot % 64 == 0 && tokens % S::slot == 0;

  // Q, K and V of a head come from one product.
  static constexpr bool whole_head = S::head_width <= 32;
  // The product of the next head is under way while one attends; it takes registers that only few warps have.
  static constexpr bool send_ahead = wgmma_scores && whole_head && tiles == 1 && S::warps <= 8;
  // The residual is loaded before the output product, where registers allow.
  static constexpr bool early_residual = S::warps <= 8 && tiles == 1 && (out_n * 4 + 2 * S::groups) <= 192;
  const ResidentArguments& args;
  u32 base;  // of shared memory
  int lane, warp, g, c;

  // First token of a warp's tile, and of the 64 that its group owns with it.
  __device__ __forceinline__ int group_token(int tile) const { return (warp / 4 * tiles + tile) * 64; }
  __device__ __forceinline__ int tile_token(int tile) const { return group_token(tile) + warp % 4 * 16; }

  __device__ __forceinline__ void meet() const {
    if constexpr (by_group && S::warps > 4)
      named_barrier(1 + warp / 4, 128);
    else
      __syncthreads();
  }

  // Cell of a token of the block, or -1 where there is none.
  __device__ __forceinline__ i64 cell(u32 first_sequence, int token) const {
    const int t = token % S::slot;
    const u32 sequence = first_sequence + token / S::slot;
    if (token / S::slot >= plan.sequences() || sequence >= args.sequences || t >= args.length) return -1;
    return first_cell(args, sequence) + t * args.token_cells;
  }

  // Normalises this warp's tokens into shared memory, and notes which are keys.
  __device__ __forceinline__ void load(u32 first_sequence) const {
    u32 v[tiles][2][S::groups];
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
      bool key[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const i64 at = cell(first_sequence, tile_token(t) + 8 * half + g);
        load_row<S::dim>(v[t][half], static_cast<const char*>(args.x) + at * (S::dim * 2), at >= 0, c);
        key[half] = at >= 0;
        if constexpr (S::mask) key[half] = key[half] && args.mask[at] != 0;
      }
      // Lane 4 g votes for rows g and g + 8.
      const u32 low = __ballot_sync(0xffffffffu, key[0]), high = __ballot_sync(0xffffffffu, key[1]);
      u32 bits = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) bits |= (low >> (4 * i) & 1) << i | (high >> (4 * i) & 1) << (8 + i);
      if (lane == 0)
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(base + plan.valid() + tile_token(t) / 8),
                     "h"(static_cast<u16>(bits))
                     : "memory");
    }
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) normalise_row<T, S::dim, S::norm>(v[t][half], args.eps);
#pragma unroll
      for (int k = 0; k < S::steps; ++k) {
        const u32 at =
            base + plan.x() + (k * (tokens / 8) + tile_token(t) / 8) * layout::core_pair_bytes + lane * 4;
        constexpr int last = S::groups - 1;
        const bool whole = 2 * k + 1 < S::groups;
        const int second = 2 * k + 1 < S::groups ? 2 * k + 1 : last;
        store_shared(at, v[t][0][2 * k]);
        store_shared(at + 128, whole ? v[t][0][second] : 0);
        store_shared(at + 256, v[t][1][2 * k]);
        store_shared(at + 384, whole ? v[t][1][second] : 0);
      }
    }
  }

  __device__ __forceinline__ u32 key_bits(int token) const {  // of 16 tokens
    u16 bits;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(base + plan.valid() + token / 8) : "memory");
    return bits;
  }

  __device__ __forceinline__ void load_residual(u32 (&v)[2][S::groups], u32 first_sequence, int tile) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i64 at = cell(first_sequence, tile_token(tile) + 8 * half + g);
      load_row<S::dim>(v[half], static_cast<const char*>(args.x) + at * (S::dim * 2), at >= 0, c);
    }
  }

  // Adds the residual in `v` and stores; `v` is used up.
  __device__ __forceinline__ void store(const float (*y)[4], u32 (&v)[2][S::groups], u32 first_sequence,
                                        int tile) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i64 at = cell(first_sequence, tile_token(tile) + 8 * half + g);
#pragma unroll
      for (int i = 0; i < S::groups; ++i) {
        float a = y[i][2 * half], b = y[i][2 * half + 1];
        if constexpr (S::residual) a += Pair<T>::first(v[half][i]), b += Pair<T>::second(v[half][i]);
        v[half][i] = Pair<T>::pack(a, b);
      }
      if (at >= 0) store_row<S::dim>(static_cast<char*>(args.y) + at * (S::dim * 2), v[half], c);
    }
  }

  __device__ __forceinline__ void publish() const {  // ordinary writes of shared memory, to wgmma of others
#if __CUDA_ARCH__ >= 900
    if constexpr (S::wgmma) fence_async_proxy();
#endif
  }
};

}  // namespace warpweave
