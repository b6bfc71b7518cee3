// Resident kernel for whole sequences in a block: K and V of one head at a time in shared memory, everything
// else in registers.
//
//   N = norm(X);  Q, K, V = N Wqkv^T + b;  O_h = softmax(Q_h K_h^T) V_h;  Y = X + concat(O) Wout^T + b
//
// X [length, dim] is a row or a column of the grid. A block of `warps` warps owns warps * tiles * 16 tokens:
// one sequence, or several of at most `slot` tokens. A warp owns `tiles` tiles of 16 tokens; the four warps
// of a group own 64 neighbouring tokens, so that the products by weights can be wgmma (compute
// capability 9.0) or mma.sync. N stays in shared memory as A operand; for each head a warp makes Q
// (registers), K and V (shared memory, V transposed), meets the warps that share its sequence, attends with
// an online softmax over chunks of 64 keys, and adds O Wout_h^T to its output [16, dim] in registers. Weights
// are streamed head by head (weight_ring.cuh).
//
// Shared memory (layout/block_plan.h), bytes: biases; N tokens * dim * 2; K and V tokens * head_width * 2
// each; stages * (3 dim + dim) * head_width * 2 of weights. 64 tokens x 2 sequences, dim 256, heads of 32: 64
// K + 16 K + 2 * 64 K.
//
// Limits on a H200, a layer: 8 x 64 x 64, dim 256, 8 heads: 19.4 GFLOP (17.2 of them by weights), 25 us at
// 787 TFLOP/s, 16.8 M exponentials 4 us. 256 x 256, dim 128, 4 heads: 17.2 GFLOP, 22 us, 67 M exponentials 16
// us.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/math.cuh"
#include "ptx/matrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/wgmma.cuh"
#include "resident/specification.cuh"
#include "resident/tokens.cuh"
#include "resident/weight_ring.cuh"

namespace warpweave {

// Without Check every sequence has `slot` tokens, all of them keys of all queries.
template <class S, bool Check>
struct BlockSequences {
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

  // d [16 or 64 rows, N] += tokens of a tile times rows `first_n` * 8 on of a matrix of `Rows` rows. A
  // product of a warpgroup is under way when this returns: finish<Pending>() before d is read.
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
    start<S::q_bias, S::head_width>(d, bias, c);
    start<S::k_bias, S::head_width>(d + head_n, bias + S::head_width * 4, c);
    start<S::v_bias, S::head_width>(d + 2 * head_n, bias + S::head_width * 8, c);
    project<3 * S::head_width, 3 * S::head_width>(d, tile, matrix, 0);
  }

  __device__ __forceinline__ void finish_head(float (*d)[4], u32 (&q)[hs][4], int tile, int head) const {
    finish<0>(d, q, tile, head);
    finish<1>(d + head_n, q, tile, head);
    finish<2>(d + 2 * head_n, q, tile, head);
  }

  template <int Part, bool Bias>
  __device__ __forceinline__ void project_part(u32 (&q)[hs][4], int tile, int head, u32 matrix) const {
    float d[head_n][4];
    start<Bias, S::head_width>(d, base + plan.bias() + (head * 3 + Part) * S::head_width * 4, c);
    project<S::head_width, 3 * S::head_width>(d, tile, matrix, Part * head_n);
    wait<0, S::wgmma>();
    finish<Part>(d, q, tile, head);
  }

  // All of Q, K and V of this warp's tiles for one head.
  __device__ __forceinline__ void project_head(u32 (&q)[tiles][hs][4], int head, u32 matrix) const {
    if constexpr (whole_head) {
      if constexpr (S::wgmma && tiles == 2) {
        float d[2][qkv_n][4];
        start_head(d[0], 0, head, matrix);
        start_head(d[1], 1, head, matrix);
        wait<1, true>();
        finish_head(d[0], q[0], 0, head);
        wait<0, true>();
        finish_head(d[1], q[1], 1, head);
      } else {
#pragma unroll
        for (int t = 0; t < tiles; ++t) {
          float d[qkv_n][4];
          start_head(d, t, head, matrix);
          wait<0, S::wgmma>();
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
        multiply_all<chunk, hs, tokens / 8 * layout::core_pair_bytes, wgmma_scores, false>(
            s[t], q[t], base + plan.key(head) + (first + from) / 8 * layout::core_pair_bytes);
      }
      if constexpr (Ahead) start_head(next, 0, head + 1, next_matrix);
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        const int token = tile_token(t), first = token / S::slot * S::slot;
        wait<tiles - 1 + Ahead, wgmma_scores>();
        weigh<Max>(s[t], p[t], o[t], running[t], first, from, token - first + g);
        multiply_all<S::head_width, chunk / 16, head_n * layout::core_pair_bytes, wgmma_scores, true>(
            o[t], p[t], base + plan.value(head) + (first + from) / 16 * head_n * layout::core_pair_bytes);
      }
      wait<0, wgmma_scores>();
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

  static __device__ __forceinline__ void copy_heads(u32 (&to)[tiles][hs][4],
                                                    const u32 (&from)[tiles][hs][4]) {
#pragma unroll
    for (int t = 0; t < tiles; ++t)
#pragma unroll
      for (int s = 0; s < hs; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) to[t][s][i] = from[t][s][i];
  }

  __device__ __forceinline__ void run() const {
    const u32 blocks = (args.sequences + plan.sequences() - 1) / plan.sequences();
    const int turns = (blocks - blockIdx.x + gridDim.x - 1) / gridDim.x;
    const WeightRing<S> ring{static_cast<const char*>(args.weights), base, turns * S::heads * 2};
    ring.start();
    for (int i = threadIdx.x * 16; i < S::weights.qkv(); i += S::threads * 16) {
      u32 w[4];
      load_global(w, static_cast<const char*>(args.weights) + i);
      store_shared(base + plan.bias() + i, w);
    }
    wait_for_previous_grid();
    int item = 0;
#pragma unroll 1
    for (int turn = 0; turn < turns; ++turn) {
      const u32 first_sequence = (blockIdx.x + turn * gridDim.x) * plan.sequences();
      load(first_sequence);
      publish();
      if (turn == 0) {
        __syncthreads();
        let_next_grid_start();
      } else {
        meet();
      }
      u32 o[S::heads][tiles][hs]
           [4];  // indexed at run time: in local memory, which is less than more registers
      float ahead[send_ahead ? qkv_n : 1][4];
      if constexpr (send_ahead) start_head(ahead, 0, 0, ring.acquire(item));
#pragma unroll 1
      for (int h = 0; h < S::heads; ++h, ++item) {
        u32 q[tiles][hs][4], result[tiles][hs][4];
        if constexpr (send_ahead) {
          wait<0, true>();
          ring.release(item);
          finish_head(ahead, q[0], 0, h);
          publish();
          meet();  // also: K and V of the head before the last are read
          if (h + 1 < S::heads)
            attend_safely<true>(result, q, h, ahead, ring.acquire(item + 1));
          else
            attend_safely<false>(result, q, h, nullptr, 0);
        } else {
          const u32 matrix = ring.acquire(item);
          project_head(q, h, matrix);
          ring.release(item);
          publish();
          meet();
          attend_safely<false>(result, q, h, nullptr, 0);
        }
        copy_heads(o[h], result);
      }
      float y[tiles][out_n][4];
#pragma unroll
      for (int t = 0; t < tiles; ++t)
        start<S::out_bias, S::dim_width>(y[t], base + plan.bias() + S::weights.out_bias(), c);
      u32 residual[early_residual ? tiles : 1][2][S::groups];
      if constexpr (S::residual && early_residual) {
#pragma unroll
        for (int t = 0; t < tiles; ++t) load_residual(residual[t], first_sequence, t);
      }
      u32 a[tiles][hs][4];
      copy_heads(a, o[0]);
#pragma unroll 1
      for (int h = 0; h < S::heads; ++h, ++item) {
        u32 next[tiles][hs][4];  // loaded while the product is under way
        copy_heads(next, o[min(h + 1, S::heads - 1)]);
        const u32 out = ring.acquire(item);
#pragma unroll
        for (int t = 0; t < tiles; ++t)
          multiply_all<S::dim_width, hs, out_n * layout::core_pair_bytes, S::wgmma, true>(y[t], a[t], out);
        wait<0, S::wgmma>();
        ring.release(item);
        copy_heads(a, next);
      }
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        if constexpr (S::residual && !early_residual) load_residual(residual[0], first_sequence, t);
        store(y[t], residual[early_residual ? t : 0], first_sequence, t);
      }
      meet();  // N, K, V and the key bits are read
    }
  }
};

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    resident_block(const __grid_constant__ ResidentArguments args) {
  extern __shared__ __align__(128) char memory[];
  const u32 base = shared_address(memory);
  const int lane = threadIdx.x % 32,
            warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // known to be uniform
  if (!S::mask && !S::causal && args.length == S::slot)
    BlockSequences<S, false>{args, base, lane, warp, lane / 4, lane % 4}.run();
  else
    BlockSequences<S, true>{args, base, lane, warp, lane / 4, lane % 4}.run();
}

}  // namespace warpweave
