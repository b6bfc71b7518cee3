// q, k, v and attention of short sequences in one kernel, for compute capability 9.0: o = softmax(scale q k^T) v with
// q | k | v = x W^T + bias, for each sequence and head.
//
//   x [token, channel], W [3 heads HEAD, channel], o [token, heads, HEAD], 16-bit elements
//
// An item is a head of 128 tokens, which are whole sequences: one of up to 128, two of up to 64, four of up to 32, eight
// of up to 16. Its q, k and v, 128 by 3 HEAD, are the result of one product that stays in a warpgroup's registers; they
// are rounded, k and v go to shared memory, and the same warpgroup attends. q, k and v are never in global memory.
//
// Two groups take turns: while one attends, the other multiplies, and the tensor cores are never without work. A third
// one loads chunks of 64 channels of tokens and weights through a ring (copy engine, mbarriers). Where shared memory
// suffices, the tokens stay for all heads and a block does the heads one after another; else blocks do the heads of the
// same tokens at the same time, so that all but one read them from L2.
//
// Softmax subtracts the maximum of the row, whose scores are all there. Rows past the end of a sequence arrive as zeros;
// they have no weight as keys, and their results are not stored. A sequence's bits depend on nothing beside it.
//
// Shared memory: qkv_attention_params.h. Limit: flops of the product, 6 tokens heads HEAD channels; tokens past the end
// count too.
#pragma once

#include "common/index.cuh"
#include "common/types.cuh"
#include "long/attention_ring.cuh"
#include "long/qkv_attention_params.h"
#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/l2.cuh"
#include "ptx/math.cuh"
#include "ptx/matrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace warpweave::kernels::long_attention {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The places of a block's shared memory, and its items.
template <int HEAD, int SLOT, int HELD>
struct QkvBlock {
  static constexpr QkvPlan plan{HEAD, SLOT, HELD};
  using Stage = Cursor<plan.stages()>;
  struct Item {
    u32 head, sequence, outer;  // the first sequence of the row of sequences `outer`
    u32 tile;                   // number of the tokens
  };

  const QkvParams& p;
  u32 shared;
  u32 first, end, step;  // items of the block
  u32 tiles;             // of sequences in a row

  __device__ __forceinline__ QkvBlock(const QkvParams& params, u32 address) : p(params), shared(address) {
    const u32 inner = static_cast<u32>(p.tokens.inner), sequences = static_cast<u32>(p.sequences);
    tiles = (min(inner, sequences) + plan.sequences() - 1) / plan.sequences();
    const u32 items = (sequences + inner - 1) / inner * tiles * p.heads;
    if constexpr (HELD > 0) {
      const u64 all = items;
      first = static_cast<u32>(blockIdx.x * all / gridDim.x), end = static_cast<u32>((blockIdx.x + 1) * all / gridDim.x),
      step = 1;
    } else {
      first = blockIdx.x, end = items, step = gridDim.x;
    }
  }
  __device__ __forceinline__ Item item(u32 number) const {
    Item i;
    i.head = number % p.heads, i.tile = number / p.heads;
    i.outer = i.tile / tiles, i.sequence = i.tile % tiles * plan.sequences();
    return i;
  }

  __device__ __forceinline__ u32 stage(u32 place) const { return shared + plan.stages_at() + place * plan.stage_bytes(); }
  __device__ __forceinline__ u32 weights(u32 place) const { return stage(place) + plan.weight_at(); }
  __device__ __forceinline__ u32 tokens(u32 place, u32 chunk) const {
    return HELD > 0 ? shared + chunk * QkvPlan::kChunkBytes : stage(place);
  }
  __device__ __forceinline__ u32 keys(int group) const { return shared + plan.groups_at() + group * plan.group_bytes(); }
  __device__ __forceinline__ u32 values(int group) const { return keys(group) + plan.keys() * 128; }
  __device__ __forceinline__ u32 bias(int group) const { return shared + plan.bias_at() + group * plan.bias_bytes(); }
  __device__ __forceinline__ u32 full(u32 place) const { return shared + plan.barriers_at() + place * 16; }
  __device__ __forceinline__ u32 free(u32 place) const { return full(place) + 8; }
  __device__ __forceinline__ u32 tokens_full(u32 chunk) const { return full(plan.stages() + chunk); }
  __device__ __forceinline__ u32 tokens_free(u32 chunk) const { return free(plan.stages() + chunk); }
  __device__ __forceinline__ u32 turn(int group) const { return full(plan.stages() + HELD) + group * 8; }

  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x == 0) {
      prefetch_tensor_map(&p.x);
      prefetch_tensor_map(&p.weight);
      for (u32 place = 0; place < plan.stages() + HELD; ++place) {
        barrier_init(full(place), 1);
        barrier_init(free(place), 4);
      }
      for (int group = 0; group < QkvPlan::kGroups; ++group) barrier_init(turn(group), 4);
      barrier_init_fence();
    }
    __syncthreads();
  }

  // ---- the thread that loads

  __device__ __forceinline__ void load_tokens(u32 to, u32 barrier, const Item& i, u32 chunk) const {
    copy_tensor(to, &p.x, barrier, chunk * 64, 0, i.sequence, i.outer);
  }

  __device__ __forceinline__ void load() const {
    Stage at;
    u32 tile = ~0u, turn = 0;
#pragma unroll 1
    for (u32 number = first; number < end; number += step, ++turn) {
      const Item i = item(number);
      const bool other = i.tile != tile;
      tile = i.tile;
#pragma unroll 1
      for (u32 chunk = 0; chunk < static_cast<u32>(p.chunks); ++chunk) {
        if constexpr (HELD > 0) {
          // A phase ends with each item, and a wait tells it from those beside it alone.
          if (turn > 0) barrier_wait(tokens_free(chunk), turn & 1 ^ 1);
          if (other) {
            barrier_expect(tokens_full(chunk), QkvPlan::kChunkBytes);
            load_tokens(tokens(0, chunk), tokens_full(chunk), i, chunk);
          }
        }
        barrier_wait(free(at.place), at.parity ^ 1);
        barrier_expect(full(at.place), plan.stage_bytes());
        if constexpr (HELD == 0) load_tokens(stage(at.place), full(at.place), i, chunk);
        copy_tensor(weights(at.place), &p.weight, full(at.place), chunk * 64, 0, i.head, 0);
        at.advance();
      }
    }
  }
};

// A group that computes.
template <class T, int HEAD, int SLOT, int HELD>
struct QkvGroup {
  using Block = QkvBlock<HEAD, SLOT, HELD>;
  static constexpr QkvPlan plan = Block::plan;
  // Keys that a row's scores have. Where a warp's rows are of one of several sequences of the group's 64, it multiplies
  // by itself, so that what is not finite in one does not reach the others by way of weights of zero.
  static constexpr int TILES = HEAD / 8, KEYS = SLOT;
  static constexpr bool ALONE = SLOT < 64;
  using Product = float[3 * TILES][4];  // q | k | v of 64 tokens
  using Query = u32[HEAD / 16][4];
  using Scores = float[KEYS / 8][4];
  using Weights = u32[KEYS / 16][4];
  using Output = float[TILES][4];
  using Rows = float[2];  // of the rows lane / 4 and lane / 4 + 8 of a warp's 16

  const Block& at;
  const QkvParams& p;
  int group;

  static __device__ __forceinline__ int warp() { return threadIdx.x / 32 % 4; }
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  // All warps of the group.
  __device__ __forceinline__ void meet() const { named_barrier(1 + group, 128); }
  // Those that share keys and values.
  __device__ __forceinline__ void meet_sharers() const {
    if constexpr (SLOT == 16)
      __syncwarp();
    else
      meet();
  }

  static __device__ __forceinline__ void arrive(u32 barrier) {
    __syncwarp();
    if (lane() == 0) barrier_arrive(barrier);
  }
  __device__ __forceinline__ void release(u32 place, u32 chunk) const {
    arrive(at.free(place));
    if constexpr (HELD > 0) arrive(at.tokens_free(chunk));
  }

  // Where 16 bytes, 8 channels, of a row of the group's keys, values or results lie.
  static __device__ __forceinline__ u32 piece(u32 base, int row, int column) {
    return base + row * 128 + ((column ^ row % 8) * 16);
  }

  // ---- q | k | v

  template <bool FIRST>
  __device__ __forceinline__ void multiply_chunk(Product (&d)[2], u32 place, u32 chunk) const {
    const u64 a = swizzled_rows<128>(at.tokens(place, chunk)), b = swizzled_rows<128>(at.weights(place));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u64 rows = a + half * (64 * 128 / 16) + 2 * k;
        if (FIRST && k == 0)
          Wgmma<T, 3 * HEAD>::template shared<false>(d[half], rows, b + 2 * k);
        else
          Wgmma<T, 3 * HEAD>::template shared<true>(d[half], rows, b + 2 * k);
      }
    }
    wgmma_commit();
  }

  // `turn`: number of the item among the block's.
  __device__ __forceinline__ void multiply(Product (&d)[2], u32 turn, u32 tile, u32 head) const {
    const u32 chunks = p.chunks, used = turn * chunks;
    typename Block::Stage stage{used % plan.stages(), used / plan.stages() & 1};
    // The other group has seen all stages of the item before, so that they are in the phase before the one waited for.
    barrier_wait(at.turn(group), (turn / 2 & 1) ^ (group == 0));
    const auto wait = [&](u32 chunk) {
      if constexpr (HELD > 0) barrier_wait(at.tokens_full(chunk), tile & 1);
      barrier_wait(at.full(stage.place), stage.parity);
    };
    wait(0);
    multiply_chunk<true>(d, stage.place, 0);
    fetch_bias(head);
    u32 before = stage.place;
    stage.advance();
#pragma unroll 1
    for (u32 chunk = 1; chunk < chunks; ++chunk) {
      wait(chunk);
      multiply_chunk<false>(d, stage.place, chunk);
      wgmma_wait<1>();
      release(before, chunk - 1);
      before = stage.place;
      stage.advance();
    }
    arrive(at.turn(group ^ 1));
    wgmma_wait<0>();
    wgmma_settle(d[0]);
    wgmma_settle(d[1]);
    release(before, chunks - 1);
  }

  // To shared memory, two channels a word.
  __device__ __forceinline__ void fetch_bias(u32 head) const {
    constexpr int WORDS = 3 * HEAD / 2;
    const int i = threadIdx.x % 128;
    if (i < WORDS) {
      const int part = i / (HEAD / 2), channel = i % (HEAD / 2);
      const u32* from = static_cast<const u32*>(p.bias) + (part * p.heads + head) * (HEAD / 2) + channel;
      store_shared(at.bias(group) + i * 4, p.bias ? load_global(from) : 0u);
    }
  }

  // Tile n, of 8 channels, of rows `half` of this lane, rounded.
  __device__ __forceinline__ u32 rounded(const Product& d, int n, int half) const {
    const u32 b = load_shared(at.bias(group) + n * 16 + lane() % 4 * 4);
    return Pair<T>::pack(d[n][2 * half] + Pair<T>::first(b), d[n][2 * half + 1] + Pair<T>::second(b));
  }

  __device__ __forceinline__ void take_queries(Query& q, const Product& d) const {
#pragma unroll
    for (int i = 0; i < HEAD / 16; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) q[i][r] = rounded(d, 2 * i + r / 2, r % 2);
    }
  }
  // k and v to rows `row` and up of the group's.
  __device__ __forceinline__ void put_keys_and_values(const Product& d, int row) const {
    const int own = row + warp() * 16 + lane() % 16;
#pragma unroll
    for (int part = 1; part < 3; ++part) {
      const u32 base = part == 1 ? at.keys(group) : at.values(group);
#pragma unroll
      for (int n = 0; n < TILES; n += 2) {
        u32 r[4];
#pragma unroll
        for (int m = 0; m < 4; ++m) r[m] = rounded(d, part * TILES + n + m / 2, m % 2);
        store_matrices(piece(base, own, n + lane() / 16), r);
      }
    }
  }

  // ---- attention

  __device__ __forceinline__ void multiply_keys(Scores& s, const Query& q) const {
    if constexpr (ALONE) {
      const int own = warp() * 16 / SLOT * SLOT + lane() / 16 * 8 + lane() % 8;
#pragma unroll
      for (int n = 0; n < KEYS / 8; n += 2) {
#pragma unroll
        for (int r = 0; r < 4; ++r) s[n][r] = s[n + 1][r] = 0.0f;
#pragma unroll
        for (int i = 0; i < HEAD / 16; ++i) {
          u32 k[4];
          load_matrices(k, piece(at.keys(group), own + n * 8, 2 * i + lane() / 8 % 2));
          mma<T>(s[n], q[i], k[0], k[1]);
          mma<T>(s[n + 1], q[i], k[2], k[3]);
        }
      }
    } else {
      const u64 k = swizzled_rows<128>(at.keys(group));
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < HEAD / 16; ++i) {
        if (i == 0)
          Wgmma<T, KEYS>::template registers<false>(s, q[i], k);
        else
          Wgmma<T, KEYS>::template registers<true>(s, q[i], k + 2 * i);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_settle(s);
    }
  }
  __device__ __forceinline__ void multiply_values(Output& o, const Weights& w) const {
    if constexpr (ALONE) {
      const int own = warp() * 16 / SLOT * SLOT + lane() % 16;
#pragma unroll
      for (int n = 0; n < TILES; n += 2) {
#pragma unroll
        for (int r = 0; r < 4; ++r) o[n][r] = o[n + 1][r] = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i) {
          u32 v[4];
          load_matrices_transposed(v, piece(at.values(group), own + i * 16, n + lane() / 16));
          mma<T>(o[n], w[i], v[0], v[1]);
          mma<T>(o[n + 1], w[i], v[2], v[3]);
        }
      }
    } else {
      const u64 v = swizzled_rows<128>(at.values(group), 16);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < KEYS / 16; ++i) {
        if (i == 0)
          Wgmma<T, HEAD>::template registers<false, true>(o, w[i], v);
        else
          Wgmma<T, HEAD>::template registers<true, true>(o, w[i], v + i * 128);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_settle(o);
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

  // Scores to weights; `gain` is one over their sums.
  __device__ __forceinline__ void weigh(Weights& w, Rows& gain, Scores& s, float factor) const {
    if (p.length < SLOT) select(s);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = minus_infinity(), sum[2] = {};
#pragma unroll
      for (int n = 0; n < KEYS / 8; ++n) most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      const float base = quad_max(most) * factor;
#pragma unroll
      for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          s[n][2 * half + e] = exp2_approx(s[n][2 * half + e] * factor - base);
          sum[e] += s[n][2 * half + e];
        }
      }
      gain[half] = reciprocal_approx(quad_sum(sum[0] + sum[1]));
    }
#pragma unroll
    for (int i = 0; i < KEYS / 16; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) w[i][r] = Pair<T>::pack(s[2 * i + r / 2][r % 2 * 2], s[2 * i + r / 2][r % 2 * 2 + 1]);
    }
  }

  // Results of 64 tokens, through the warp's own rows of the keys, which nobody needs any more, so that lanes write 16
  // bytes. `row`: the first among the group's rows, `token` among the item's.
  __device__ __forceinline__ void store(const Output& o, const Rows& gain, const typename Block::Item& item, int row,
                                        int token) const {
    const int own = warp() * 16;
#pragma unroll
    for (int n = 0; n < TILES; n += 2) {
      u32 r[4];
#pragma unroll
      for (int m = 0; m < 4; ++m)
        r[m] = Pair<T>::pack(o[n + m / 2][m % 2 * 2] * gain[m % 2], o[n + m / 2][m % 2 * 2 + 1] * gain[m % 2]);
      store_matrices(piece(at.keys(group), row + own + lane() % 16, n + lane() / 16), r);
    }
    __syncwarp();
    const u64 policy = keep_in_l2(p.keep);
    const u32 inner = min(static_cast<u32>(p.tokens.inner), static_cast<u32>(p.sequences));
    char* const out = static_cast<char*>(p.o) + item.head * (HEAD * 2);
#pragma unroll
    for (int i = 0; i < TILES / 2; ++i) {
      const int r = own + (i * 32 + lane()) / TILES, column = (i * 32 + lane()) % TILES;
      const u32 place = token + r, sequence = item.sequence + place / SLOT, l = place % SLOT;
      if (l < static_cast<u32>(p.length) && sequence < inner) {
        const u32 to = item.outer * static_cast<u32>(p.tokens.outer_stride) +
                       sequence * static_cast<u32>(p.tokens.inner_stride) + l * static_cast<u32>(p.tokens.step);
        u32 v[4];
        load_shared(v, piece(at.keys(group), row + r, column));
        store_global(out + static_cast<u64>(to) * (p.heads * HEAD * 2) + column * 16, v[0], v[1], v[2], v[3], policy);
      }
    }
    __syncwarp();
  }

  // A sequence is 128 tokens.
  __device__ __forceinline__ void attend_together(const Product (&d)[2], const typename Block::Item& item,
                                                  float factor) const {
    Query q[2];
    Weights w[2];
    Rows gain[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      put_keys_and_values(d[half], half * 64);
      take_queries(q[half], d[half]);
    }
    fence_async_proxy();
    meet();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Scores s;
      multiply_keys(s, q[half]);
      weigh(w[half], gain[half], s, factor);
    }
    meet();  // the keys have been read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Output o;
      multiply_values(o, w[half]);
      store(o, gain[half], item, half * 64, half * 64);
    }
    meet();  // the values have been read
  }

  // Sequences are 64 tokens or fewer.
  __device__ __forceinline__ void attend_apart(const Product (&d)[2], const typename Block::Item& item,
                                               float factor) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Query q;
      Scores s;
      Weights w;
      Rows gain;
      Output o;
      put_keys_and_values(d[half], 0);
      take_queries(q, d[half]);
      if constexpr (!ALONE) fence_async_proxy();
      meet_sharers();
      multiply_keys(s, q);
      weigh(w, gain, s, factor);
      meet_sharers();  // the keys have been read
      multiply_values(o, w);
      store(o, gain, item, 0, half * 64);
      meet_sharers();  // the values have been read
    }
  }

  __device__ __forceinline__ void run() const {
    const float factor = p.scale * 1.4426950408889634f;  // to base 2
    u32 turn = group;
#pragma unroll 1
    for (u32 number = at.first + group * at.step; number < at.end; number += 2 * at.step, turn += 2) {
      const auto item = at.item(number);
      Product d[2];
      multiply(d, turn, item.tile - at.first / p.heads, item.head);
      meet();  // the bias is there
      if constexpr (SLOT > 64)
        attend_together(d, item, factor);
      else
        attend_apart(d, item, factor);
    }
  }
};

#endif

template <class T, int HEAD, int SLOT, int HELD>
__global__ void __launch_bounds__(QkvPlan::kThreads, 1) qkv_attention(const __grid_constant__ QkvParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  using Block = QkvBlock<HEAD, SLOT, HELD>;
  const Block block(p, shared_address(memory));
  block.prepare();
  wait_for_previous_grid();
  let_next_grid_start();
  // The same in all lanes, and known to be.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
  if (group == QkvPlan::kGroups) {
    give_registers_back<QkvPlan::kLoadRegisters>();
    if (threadIdx.x == QkvPlan::kGroups * 128) block.load();
  } else {
    take_registers<QkvPlan::kComputeRegisters>();
    QkvGroup<T, HEAD, SLOT, HELD>{block, p, group}.run();
  }
#endif
}

}  // namespace warpweave::kernels::long_attention
