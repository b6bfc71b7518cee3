// An axial attention layer in one kernel for compute capability 9.0, for sequences of which the keys and values of one
// head fit into shared memory twice:
//
//   q | k | v = norm(x) Wqkv^T + b;  o_h = softmax(q_h k_h^T) v_h;  y = residual + concat(o) Wout^T + bias
//
// A block stays and takes sequence after sequence, head after head: an item is a head of a sequence. Warpgroup g owns
// tokens g TILES 64 and on. It projects their q, which stay in its registers, and k and v, which go to shared memory,
// and attends to the keys of all groups. Buffers are double: each group projects for a coming item as soon as it has a
// pause, each at another time, so that three groups always fill the pipe of the exponentials; barriers are mbarriers,
// and none stops all groups. Results of a head are parked in global memory (L2) by the thread that reads them again as
// left operand of the output projection, after the last head. x is read once for each head, all but the first time from
// L2, where it is called ahead; mean and gain of a token are kept. In place: no thread reads x of another group's
// tokens, and y is written after the last read.
//
// Nothing but x and y goes to DRAM: 512 x 512 tokens of 128 channels are 134 MB, 32 us at 4.2 TB/s. Limit: L^2
// exponentials per head and sequence, 145 us.
#pragma once

#include "long/output_channels.cuh"
#include "long/whole_layer_attention.cuh"
#include "long/whole_layer_params.h"
#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/math.cuh"
#include "ptx/matrix.cuh"
#include "ptx/types.cuh"
#include "ptx/wgmma.cuh"

namespace warpweave::kernels::long_sequences {

enum WholeLayerNorm { whole_layer_norm, whole_rms_norm };

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class T, int DIM, int HEADS, int TILES, int NORM, bool BIASED>
struct WholeLayer {
  static constexpr WholeLayerPlan plan{DIM, HEADS, TILES};
  static constexpr int kPieces = DIM / 32, kWords = 4 * kPieces;  // of a token in a lane
  static constexpr int kChunk = long_attention::Plan::kChunk;
  static constexpr bool kStartsWithBias = BIASED && !long_attention::kScaled<T>;  // the products by Wqkv
  using Attention = HeadAttention<T>;
  using Query = typename Attention::Query;
  using Tokens = u32[2][kWords];      // tokens lane / 4 and lane / 4 + 8 of a warp's 16
  using Added = u32[kChunk / 32][2][4];

  const WholeLayerParams& p;
  u32 shared;
  char* parked;           // of this thread
  int group, warp, g, c;  // warp of the group, lane / 4, lane % 4

  __device__ __forceinline__ u32 barrier(int number) const { return shared + plan.barriers_at() + number * 8; }
  __device__ __forceinline__ u32 output_there() const { return barrier(0); }
  __device__ __forceinline__ u32 weights_there(u32 slot) const { return barrier(1 + slot); }
  __device__ __forceinline__ u32 keys_free(u32 slot) const { return barrier(3 + slot); }
  __device__ __forceinline__ u32 keys_there(u32 slot, int of) const { return barrier(5 + slot * plan.kGroups + of); }
  __device__ __forceinline__ u32 weights(u32 slot) const { return shared + slot * plan.head_bytes(); }
  __device__ __forceinline__ u32 keys(u32 slot) const {
    return shared + plan.keys_at() + slot * 2 * plan.matrix_bytes();
  }
  __device__ __forceinline__ u32 moments(int token) const { return shared + plan.moments_at() + token * 8; }

  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x == 0) {
      barrier_init(output_there(), 1);
      for (u32 slot = 0; slot < 2; ++slot) {
        barrier_init(weights_there(slot), 1);
        barrier_init(keys_free(slot), plan.kGroups * 4);
        for (int of = 0; of < plan.kGroups; ++of) barrier_init(keys_there(slot, of), 4);
      }
      barrier_init_fence();
      load_weights(0);
      load_weights(1);
      barrier_expect(output_there(), plan.output_bytes());
      copy_bulk(shared + plan.output_at(), p.output.weights, plan.output_bytes(), output_there());
    }
    __syncthreads();
  }
  __device__ __forceinline__ void load_weights(u32 item) const {
    const u32 slot = item % 2;
    barrier_expect(weights_there(slot), plan.head_bytes());
    copy_bulk(weights(slot), static_cast<const char*>(p.weights) + item % HEADS * plan.head_bytes(), plan.head_bytes(),
              weights_there(slot));
  }

  // ---- places

  __device__ __forceinline__ int items() const {
    const int first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
    return (p.sequences - first + step - 1) / step * HEADS;
  }
  __device__ __forceinline__ u32 sequence(u32 item) const { return blockIdx.x + item / HEADS * gridDim.x; }
  __device__ __forceinline__ i64 first_cell(u32 sequence) const {
    const u32 inner = static_cast<u32>(p.cells.inner), outer = sequence / inner;
    return outer * p.cells.outer_stride + (sequence - outer * inner) * p.cells.inner_stride;
  }
  __device__ __forceinline__ int token(int tile, int half) const {
    return group * plan.group_tokens() + tile * 64 + warp * 16 + half * 8 + g;
  }
  // Tokens past the end are copies of the last one; no weight but 0 meets them.
  __device__ __forceinline__ int clamped(int token) const { return min(token, p.length - 1); }
  // Whether the group has queries in this tile.
  __device__ __forceinline__ bool has(int tile) const { return group * plan.group_tokens() + tile * 64 < p.length; }

  // ---- projections

  __device__ __forceinline__ void load(Tokens& t, int tile, u32 item) const {
    const i64 first = first_cell(sequence(item));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i64 cell = first + clamped(token(tile, half)) * p.cells.step;
      const char* from = static_cast<const char*>(p.x) + cell * (DIM * 2) + c * 16;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        u32 w[4];
        load_global(w, from + i * 64);
#pragma unroll
        for (int j = 0; j < 4; ++j) t[half][4 * i + j] = w[j];
      }
    }
  }

  // Mean and gain; the mean is subtracted before squaring, since sums of squares would cancel at large means.
  __device__ __forceinline__ void measure(float& mean, float& gain, const u32 (&v)[kWords]) const {
    float sum = 0, squares = 0;
    mean = 0;
    if constexpr (NORM == whole_layer_norm) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) sum += Pair<T>::first(v[i]) + Pair<T>::second(v[i]);
      mean = quad_sum(sum) * (1.0f / DIM);
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const float a = Pair<T>::first(v[i]) - mean, b = Pair<T>::second(v[i]) - mean;
      squares += a * a + b * b;
    }
    gain = rsqrt_approx(quad_sum(squares) * (1.0f / DIM) + p.eps);
  }
  // In place. The first head's turn measures, the others remember.
  __device__ __forceinline__ void normalise(Tokens& t, int tile, bool first_head) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u32 at = moments(token(tile, half));
      float mean, gain;
      if (first_head) {
        measure(mean, gain, t[half]);
        if (c == 0) store_shared(at, __float_as_uint(mean), __float_as_uint(gain));
        __syncwarp();
      } else {
        u32 v[2];
        load_shared(v, at);
        mean = __uint_as_float(v[0]), gain = __uint_as_float(v[1]);
      }
#pragma unroll
      for (int i = 0; i < kWords; ++i)
        t[half][i] = Pair<T>::pack((Pair<T>::first(t[half][i]) - mean) * gain,
                                   (Pair<T>::second(t[half][i]) - mean) * gain);
    }
  }

  // Columns FIRST .. FIRST + COLUMNS of the product by the head's weights.
  template <int FIRST, int COLUMNS>
  __device__ __forceinline__ void multiply(float (&d)[COLUMNS / 8][4], const Tokens& t, u32 slot) const {
    const u32 b = core_matrices(weights(slot) + plan.matrix_at() + FIRST / 8 * 256);
    if constexpr (kStartsWithBias) {
#pragma unroll
      for (int n = 0; n < COLUMNS / 8; ++n) {
        u32 v[2];
        load_shared(v, weights(slot) + plan.bias_at() + (FIRST + 8 * n + 2 * c) * 4);
#pragma unroll
        for (int r = 0; r < 4; ++r) d[n][r] = __uint_as_float(v[r % 2]);
      }
    }
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < DIM / 16; ++s) {
      const u32 a[4] = {t[0][2 * s], t[1][2 * s], t[0][2 * s + 1], t[1][2 * s + 1]};
      const u32 step = b + s * (plan.kColumns / 8 * 256 / 16);
      if (s == 0)
        wgmma_registers<T, COLUMNS, kStartsWithBias>(d, a, step);
      else
        wgmma_registers<T, COLUMNS, true>(d, a, step);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(d);
  }

  // Scales, and bias behind them. A lane's columns 8 n + 2 c and the next are neighbouring channels.
  template <int FIRST, int TILE_COUNT>
  __device__ __forceinline__ void finish(float (&d)[TILE_COUNT][4], u32 slot) const {
    if constexpr (long_attention::kScaled<T>) {
#pragma unroll
      for (int n = 0; n < TILE_COUNT; ++n) {
        const u32 at = weights(slot) + (FIRST + 8 * n + 2 * c) * 4;
        u32 factor[2], added[2] = {};
        load_shared(factor, at + plan.scale_at());
        if constexpr (BIASED) load_shared(added, at + plan.bias_at());
#pragma unroll
        for (int r = 0; r < 4; ++r) d[n][r] = d[n][r] * __uint_as_float(factor[r % 2]) + __uint_as_float(added[r % 2]);
      }
    }
  }
  // q, k and v of the group's tokens. Keys and values first, then queries: fewer registers.
  __device__ __forceinline__ void project(Query (&q)[TILES], u32 item) const {
    const u32 slot = item % 2, parity = item / 2 % 2;
    Tokens t;
    load(t, 0, item);
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      normalise(t, tile, item % HEADS == 0);
      if (tile == 0) {
        barrier_wait(weights_there(slot), parity);
        barrier_wait(keys_free(slot), parity ^ 1);
      }
      {
        float d[2 * plan.kHead / 8][4];
        multiply<plan.kHead, 2 * plan.kHead>(d, t, slot);
        finish<plan.kHead>(d, slot);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const u32 to = keys(slot) + Attention::place(token(tile, half), c);
          u32 w[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) w[k] = Pair<T>::pack(d[k][2 * half], d[k][2 * half + 1]);
          store_shared(to, w);
#pragma unroll
          for (int k = 0; k < 4; ++k) w[k] = Pair<T>::pack(d[4 + k][2 * half], d[4 + k][2 * half + 1]);
          store_shared(to + plan.matrix_bytes(), w);
        }
      }
      float d[plan.kHead / 8][4];
      multiply<0, plan.kHead>(d, t, slot);
      if (tile + 1 < TILES) load(t, tile + 1, item);
      finish<0>(d, slot);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int r = 0; r < 4; ++r)
          q[tile][i][r] = Pair<T>::pack(d[2 * i + r / 2][r % 2 * 2], d[2 * i + r / 2][r % 2 * 2 + 1]);
    }
    fence_async_proxy();
    arrive(keys_there(slot, group));
  }

  __device__ __forceinline__ void arrive(u32 at) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(at);
  }

  // ---- results

  __device__ __forceinline__ char* parked_at(int head, int tile, int i) const {
    return parked + ((head * TILES + tile) * 2 + i) * (plan.kThreads * 16);
  }

  __device__ __forceinline__ void load_residual(Added& r, const i64 (&row)[2], int chunk) const {
#pragma unroll
    for (int i = 0; i < kChunk / 32; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < 4; ++j) r[i][half][j] = 0;
        if (p.output.residual)
          load_global(r[i][half],
                      static_cast<const T*>(p.output.residual) + row[half] + chunk * kChunk + i * 32 + c * 8);
      }
  }

  // y of 64 tokens.
  __device__ __forceinline__ void project_output(const Query& last, int tile, u32 item) const {
    Query o[HEADS];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int h = 0; h < HEADS - 1; ++h) load_global(o[h][i], parked_at(h, tile, i));
#pragma unroll
      for (int r = 0; r < 4; ++r) o[HEADS - 1][i][r] = last[i][r];
    }
    const i64 first = first_cell(sequence(item));
    i64 row[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) row[half] = (first + clamped(token(tile, half)) * p.cells.step) * DIM;
#pragma unroll 1
    for (int chunk = 0; chunk < DIM / kChunk; ++chunk) {
      Added r;
      load_residual(r, row, chunk);
      float d[kChunk / 8][4];
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 2 * HEADS; ++k) {
        const int panel = chunk * (HEADS / 2) + k / 4;
        const u64 b =
            swizzled_rows<128>(shared + plan.output_at() + panel * long_attention::Plan::kPanelBytes) + k % 4 * 2;
        if (k == 0)
          Wgmma<T, kChunk>::template registers<false>(d, o[0][0], b);
        else
          Wgmma<T, kChunk>::template registers<true>(d, o[k / 2][k % 2], b);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_settle(d);
      store(d, r, row, tile, chunk);
    }
  }
  __device__ __forceinline__ void store(const float (&d)[kChunk / 8][4], const Added& r, const i64 (&row)[2], int tile,
                                        int chunk) const {
#pragma unroll
    for (int i = 0; i < kChunk / 32; ++i) {
      const int channel = chunk * kChunk + i * 32 + c * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        u32 v[4];
        long_attention::finish_output<T>(v, d + 4 * i, half, r[i][half], p.output, channel);
        if (token(tile, half) < p.length)
          store_global(static_cast<T*>(p.output.y) + row[half] + channel, v[0], v[1], v[2], v[3]);
      }
    }
  }

  // ---- the block's items

  // The sequence's x into L2.
  __device__ __forceinline__ void call_ahead(u32 sequence) const {
    if (static_cast<int>(threadIdx.x) >= p.length) return;
    const i64 cell = first_cell(sequence) + static_cast<int>(threadIdx.x) * p.cells.step;
    const char* from = static_cast<const char*>(p.x) + cell * (DIM * 2);
#pragma unroll
    for (int i = 0; i < DIM * 2; i += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
  }

  // Group 0 projects two items ahead, after its last tile; the middle groups one ahead, after their first; the last
  // group one ahead, after its last.
  __device__ __forceinline__ void run() const {
    const int count = items(), early = group < (TILES == 1 ? 2 : 1),
              pause = TILES == 2 && (group == 1 || group == 2) ? 0 : TILES - 1;
    Query q[TILES] = {}, coming[TILES] = {};
#pragma unroll 1
    for (int item = -2; item < count; ++item) {
      if (item >= 0 && item % HEADS == HEADS / 2 && item + HEADS / 2 < count) call_ahead(sequence(item + HEADS / 2));
#pragma unroll 1
      for (int tile = 0; tile < TILES; ++tile) {
        Query o = {};
        if (item >= 0 && has(tile)) {
          typename Attention::Output sum;
          typename Attention::Rows total;
          const Attention at{keys(item % 2), keys(item % 2) + plan.matrix_bytes(), p.length};
          const bool right = at.attend(sum, total, q[0], [&](int k) {
            if (k % TILES == 0) barrier_wait(keys_there(item % 2, k / TILES), item / 2 % 2);
          });
          // The same for the group, since it multiplies together, and known to be the same in all lanes.
          if (__any_sync(0xffffffffu, named_barrier_any(1 + group, 128, !right))) at.attend_safely(sum, total, q[0]);
          Attention::divide(o, sum, total);
        }
        if (item >= 0 && tile == 0) {
          // Once all have made their keys, nobody reads this item's weights any more. And no group runs further ahead.
#pragma unroll
          for (int of = 0; of < plan.kGroups; ++of) barrier_wait(keys_there(item % 2, of), item / 2 % 2);
          if (threadIdx.x == 0 && item + 2 < count) load_weights(item + 2);
        }
        if (item >= 0 && tile == TILES - 1) arrive(keys_free(item % 2));
        if (item >= 0 && has(tile)) {
          if (item % HEADS == HEADS - 1) {
            project_output(o, tile, item);
          } else {
#pragma unroll
            for (int i = 0; i < 2; ++i)
              store_global(parked_at(item % HEADS, tile, i), o[i][0], o[i][1], o[i][2], o[i][3]);
          }
        }
#pragma unroll
        for (int i = 0; i < 8; ++i)
          for (int k = 0; k + 1 < TILES; ++k) q[k][i / 4][i % 4] = q[k + 1][i / 4][i % 4];
        if (early && tile == TILES - 1) move(q, coming);
        const int ahead = item + 1 + early;
        if (tile == pause && ahead >= 0 && ahead < count) project(coming, ahead);
        if (!early && tile == TILES - 1) move(q, coming);
      }
    }
  }
  static __device__ __forceinline__ void move(Query (&to)[TILES], const Query (&from)[TILES]) {
#pragma unroll
    for (int k = 0; k < TILES; ++k)
#pragma unroll
      for (int i = 0; i < 8; ++i) to[k][i / 4][i % 4] = from[k][i / 4][i % 4];
  }
};

#endif

template <class T, int DIM, int HEADS, int TILES, int NORM, bool BIASED>
__global__ void __launch_bounds__(WholeLayerPlan::kThreads, 1) whole_layer(const WholeLayerParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  using Layer = WholeLayer<T, DIM, HEADS, TILES, NORM, BIASED>;
  // The same in all lanes, and known to be.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
  const int lane = threadIdx.x % 32;
  char* const parked = p.parked + static_cast<i64>(blockIdx.x) * Layer::plan.parked_bytes() + threadIdx.x * 16;
  const Layer layer{p,        shared_address(memory), parked, group, static_cast<int>(threadIdx.x / 32 % 4),
                    lane / 4, lane % 4};
  layer.prepare();
  wait_for_previous_grid();
  let_next_grid_start();
  barrier_wait(layer.output_there(), 0);
  layer.run();
#endif
}

}  // namespace warpweave::kernels::long_sequences
