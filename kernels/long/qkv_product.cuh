// The product of tokens and the weights of q, k and v, whose results stay in registers, for compute capability 9.0: what
// qkv_attention.cuh and qkv_store.cuh have in common.
//
// An item is 128 tokens by 3 HEAD columns. Two groups take turns: while one works on its results, the other multiplies,
// and the tensor cores are never without work. A third one loads chunks of 64 channels of tokens and weights through a
// ring (copy engine, mbarriers). Where shared memory suffices, tokens stay there for all columns, and a block does one
// item of them after another; else blocks do the items of the same tokens at the same time, so that all but one read
// them from L2.
//
// Tokens come as they are. The norm is applied to results: its gain for channels is part of the weights, whose rows sum up
// to zero so that a token's mean meets nothing, and results are multiplied by one over the token's deviation. Of tokens
// that stay that is found on the side, by warps of the group that loads, from differences to the token's first channel:
// those are at most sqrt(channels) deviations long (Samuelson's inequality), so that nothing cancels.
#pragma once

#include "common/index.cuh"
#include "common/types.cuh"
#include "long/attention_ring.cuh"
#include "long/qkv_params.h"
#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/l2.cuh"
#include "ptx/math.cuh"
#include "ptx/matrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace warpweave::kernels::long_attention {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class Element, int HEAD, int SLOT, int HELD>
struct QkvForm {
  using T = Element;
  static constexpr QkvPlan plan{HEAD, SLOT, HELD};
  static constexpr int head = HEAD, slot = SLOT, held = HELD, tiles = HEAD / 8;
  static constexpr bool attends = SLOT > 0;
};

// The places of a block's shared memory, its items, and what loads.
template <class F>
struct QkvBlock {
  static constexpr QkvPlan plan = F::plan;
  using Stage = Cursor<plan.stages()>;
  struct Item {
    u32 column, tile;              // the tokens' number
    u32 element, sequence, outer;  // of the first token
  };
  struct Place {
    u32 element, sequence;
  };

  const QkvParams& p;
  u32 shared;

  // The block's items, from the first to before the end.
  __device__ __forceinline__ u32 first() const {
    return F::held > 0 ? static_cast<u32>(blockIdx.x * static_cast<u64>(p.items) / gridDim.x) : blockIdx.x;
  }
  __device__ __forceinline__ u32 end() const {
    return F::held > 0 ? static_cast<u32>((blockIdx.x + 1) * static_cast<u64>(p.items) / gridDim.x)
                       : static_cast<u32>(p.items);
  }
  __device__ __forceinline__ u32 step() const { return F::held > 0 ? 1 : gridDim.x; }
  __device__ __forceinline__ u32 elements() const { return F::attends ? F::slot : 1u << p.slot_bits; }
  __device__ __forceinline__ u32 chunks() const { return (p.dim + 63u) / 64; }
  __device__ __forceinline__ Item item(u32 number) const {
    Item i;
    u32 tile = p.by_columns.divide(number);
    i.column = number - tile * p.columns, i.tile = tile, i.element = 0;
    if constexpr (!F::attends) {
      const u32 sequence = p.by_along.divide(tile);
      i.element = (tile - sequence * p.along) * elements();
      tile = sequence;
    }
    i.outer = p.by_across.divide(tile);
    i.sequence = (tile - i.outer * p.across) * (QkvPlan::kTokens / elements());
    return i;
  }
  // Row 0 .. 127 of an item.
  __device__ __forceinline__ Place place(const Item& i, u32 row) const {
    const u32 bits = F::attends ? 31 - __clz(F::slot) : p.slot_bits;
    return {i.element + (row & ((1u << bits) - 1)), i.sequence + (row >> bits)};
  }

  __device__ __forceinline__ u32 stage(u32 at) const { return shared + plan.stages_at() + at * plan.stage_bytes(); }
  __device__ __forceinline__ u32 weights(u32 at) const { return stage(at) + plan.weight_at(); }
  __device__ __forceinline__ u32 tokens(u32 at, u32 chunk) const {
    return F::held > 0 ? shared + chunk * QkvPlan::kChunkBytes : stage(at);
  }
  __device__ __forceinline__ u32 own(int group) const { return shared + plan.groups_at() + group * plan.group_bytes(); }
  __device__ __forceinline__ u32 bias(int group) const {
    return shared + plan.bias_at() + group * plan.bias_bytes();
  }
  __device__ __forceinline__ u32 gain(u32 row) const { return shared + plan.gains_at() + row * 4; }
  __device__ __forceinline__ u32 full(u32 at) const { return shared + plan.barriers_at() + at * 16; }
  __device__ __forceinline__ u32 free(u32 at) const { return full(at) + 8; }
  __device__ __forceinline__ u32 tokens_full(u32 chunk) const { return full(plan.stages() + chunk); }
  __device__ __forceinline__ u32 tokens_free(u32 chunk) const { return free(plan.stages() + chunk); }
  __device__ __forceinline__ u32 turn(int group) const { return full(plan.stages() + F::held) + group * 8; }
  __device__ __forceinline__ u32 gains_full() const { return turn(QkvPlan::kGroups); }

  static constexpr int kGainWarps = 3;
  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x == 0) {
      prefetch_tensor_map(&p.x);
      prefetch_tensor_map(&p.weight);
      prefetch_tensor_map(&p.out);
      for (u32 at = 0; at < plan.stages() + F::held; ++at) {
        barrier_init(full(at), 1);
        barrier_init(free(at), 4);
      }
      for (int group = 0; group < QkvPlan::kGroups; ++group) barrier_init(turn(group), 4);
      barrier_init(gains_full(), kGainWarps);
      barrier_init_fence();
    }
    __syncthreads();
  }

  // ---- one thread

  __device__ __forceinline__ void load_tokens(u32 to, u32 barrier, const Item& i, u32 chunk) const {
    copy_tensor(to, &p.x, barrier, chunk * 64, i.element, i.sequence, i.outer);
  }
  __device__ __forceinline__ void load() const {
    Stage at;
    u32 tile = ~0u, tiles = 0, turn = 0;  // tiles: met so far
#pragma unroll 1
    for (u32 number = first(); number < end(); number += step(), ++turn) {
      const Item i = item(number);
      const bool other = i.tile != tile;
      tile = i.tile, tiles += other;
#pragma unroll 1
      for (u32 chunk = 0; chunk < chunks(); ++chunk) {
        if constexpr (F::held > 0) {
          // A phase ends with each item, and a wait tells it from those beside it alone.
          if (turn > 0) barrier_wait(tokens_free(chunk), turn & 1 ^ 1);
          if (other) {
            // The tokens before have been read for their gains as well.
            if (turn > 0 && chunk == 0) barrier_wait(gains_full(), tiles & 1);
            barrier_expect(tokens_full(chunk), QkvPlan::kChunkBytes);
            load_tokens(tokens(0, chunk), tokens_full(chunk), i, chunk);
          }
        }
        barrier_wait(free(at.place), at.parity ^ 1);
        barrier_expect(full(at.place), plan.stage_bytes());
        if constexpr (F::held == 0) load_tokens(stage(at.place), full(at.place), i, chunk);
        copy_tensor(weights(at.place), &p.weight, full(at.place), chunk * 64, F::attends ? 0 : i.column * plan.rows(),
                    F::attends ? i.column : 0, 0);
        at.advance();
      }
    }
  }

  // ---- three warps

  // 8 tokens at a time, four lanes each, in the order in which chunks come. What is written is read by then: the last
  // chunk of tokens comes when the groups have released those before, which they do once they have read their gains.
  __device__ __forceinline__ void find_gains(int warp) const {
    constexpr int STEP = kGainWarps * 8, MOST = (QkvPlan::kTokens + STEP - 1) / STEP;
    const u32 lane = threadIdx.x % 32, row = warp * 8 + lane / 4;  // of every STEP
    const u32 most = (QkvPlan::kTokens - row + STEP - 1) / STEP;
    u32 parity = 0;
#pragma unroll 1
    for (u32 tile = p.by_columns.divide(first()); tile * p.columns < end(); ++tile, parity ^= 1) {
      float sum[MOST] = {}, square[MOST] = {};
#pragma unroll 1
      for (u32 chunk = 0; chunk < chunks(); ++chunk) {
        barrier_wait(tokens_full(chunk), parity);
#pragma unroll 1
        for (u32 column = lane % 4; column < 8; column += 4) {
          if (chunk * 64 + column * 8 >= static_cast<u32>(p.dim)) break;
          const u32 from = tokens(0, chunk) + row * 128 + ((column ^ row % 8) * 16);
#pragma unroll
          for (int i = 0; i < MOST; ++i) {
            if (i + 1 == MOST && most < MOST) break;
            u32 v[4];
            load_shared(v, from + i * (STEP * 128));
            const float origin = origin_of(row + i * STEP);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const float a = Pair<typename F::T>::first(v[j]) - origin, b = Pair<typename F::T>::second(v[j]) - origin;
              sum[i] += a, sum[i] += b;
              square[i] += a * a, square[i] += b * b;
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < MOST; ++i) {
        if (i + 1 == MOST && most < MOST) break;
        put_gain(row + i * STEP, quad_sum(sum[i]), quad_sum(square[i]));
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(gains_full());
    }
  }
  // What a row's channels are seen from.
  __device__ __forceinline__ float origin_of(u32 row) const {
    const float v = Pair<typename F::T>::first(load_shared(tokens(0, 0) + row * 128 + row % 8 * 16));
    return p.norm == kLayerNorm ? v : 0.0f;
  }
  __device__ __forceinline__ void put_gain(u32 row, float sum, float square) const {
    const float mean = sum / static_cast<float>(p.dim), squares = square / static_cast<float>(p.dim);
    const float variance = p.norm == kLayerNorm ? fmaxf(squares - mean * mean, 0.0f) : squares;
    const float result = p.norm == kNoNorm ? 1.0f : 1 / sqrtf(variance + p.eps);
    if (threadIdx.x % 4 == 0) store_shared(gain(row), __float_as_uint(result));
  }
};

// A group that computes.
template <class F>
struct QkvProduct {
  using T = typename F::T;
  using Block = QkvBlock<F>;
  using Item = typename Block::Item;
  static constexpr QkvPlan plan = F::plan;
  using Product = float[3 * F::tiles][4];  // of 64 tokens
  using Gains = float[2][2];               // of half of the tokens, of the rows lane / 4 and lane / 4 + 8 of a warp's 16

  const Block& at;
  const QkvParams& p;
  int group;

  static __device__ __forceinline__ int warp() { return threadIdx.x / 32 % 4; }
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  // All warps of the group.
  __device__ __forceinline__ void meet() const { named_barrier(1 + group, 128); }

  static __device__ __forceinline__ void arrive(u32 barrier) {
    __syncwarp();
    if (lane() == 0) barrier_arrive(barrier);
  }
  __device__ __forceinline__ void release(u32 place, u32 chunk) const {
    arrive(at.free(place));
    if constexpr (F::held > 0) arrive(at.tokens_free(chunk));
  }

  // Where 16 bytes, 8 channels, of a row lie.
  static __device__ __forceinline__ u32 piece(u32 base, int row, int column) {
    return base + row * 128 + ((column ^ row % 8) * 16);
  }

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
          Wgmma<T, 3 * F::head>::template shared<false>(d[half], rows, b + 2 * k);
        else
          Wgmma<T, 3 * F::head>::template shared<true>(d[half], rows, b + 2 * k);
      }
    }
    wgmma_commit();
  }

  // Item number `turn` of the block.
  __device__ __forceinline__ void multiply(Product (&d)[2], Gains& gains, u32 turn, const Item& item) const {
    const u32 chunks = at.chunks(), used = turn * chunks, tile = item.tile - p.by_columns.divide(at.first());
    typename Block::Stage stage{used % plan.stages(), used / plan.stages() & 1};
    // The other group has seen all stages of the item before, so that they are in the phase before the one waited for.
    barrier_wait(at.turn(group), (turn / 2 & 1) ^ (group == 0));
    const auto wait = [&](u32 chunk) {
      if constexpr (F::held > 0) barrier_wait(at.tokens_full(chunk), tile & 1);
      barrier_wait(at.full(stage.place), stage.parity);
    };
    wait(0);
    multiply_chunk<true>(d, stage.place, 0);
    fetch_bias(item);
    if constexpr (F::held == 0) fetch_gains(gains, item);
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
    if constexpr (F::held > 0) {
      barrier_wait(at.gains_full(), tile & 1);
      take_gains(gains, item);
    }
    release(before, chunks - 1);
    finish_gains(gains, item);
    meet();  // the bias is there, and all are done with the item before
  }

  static __device__ __forceinline__ u32 row(int half, int r) { return half * 64 + warp() * 16 + r * 8 + lane() / 4; }
  template <class Body>
  __device__ __forceinline__ void for_rows(const Item& item, const Body& body) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const auto place = at.place(item, row(half, r));
        body(half, r, place, place.element < static_cast<u32>(p.length) && place.sequence < static_cast<u32>(p.inner));
      }
    }
  }
  __device__ __forceinline__ void take_gains(Gains& g, const Item& item) const {
    for_rows(item, [&](int half, int r, auto, bool) { g[half][r] = __uint_as_float(load_shared(at.gain(row(half, r)))); });
  }
  __device__ __forceinline__ void fetch_gains(Gains& g, const Item& item) const {
    for_rows(item, [&](int half, int r, auto place, bool present) {
      g[half][r] = 1.0f;
      const u32 token = item.outer * static_cast<u32>(p.tokens.outer_stride) +
                        place.sequence * static_cast<u32>(p.tokens.inner_stride) +
                        place.element * static_cast<u32>(p.tokens.step);
      if (p.gains && present) g[half][r] = __uint_as_float(load_global(p.gains + token));
    });
  }
  // Rows that are no tokens get zero, whatever else they are.
  __device__ __forceinline__ void finish_gains(Gains& g, const Item& item) const {
    for_rows(item, [&](int half, int r, auto, bool present) { g[half][r] = present ? g[half][r] * p.unit : 0.0f; });
  }

  // To shared memory, two columns a thread.
  __device__ __forceinline__ void fetch_bias(const Item& item) const {
    constexpr int HEAD = F::head;
    const int i = threadIdx.x % 128;
    if (i >= 3 * HEAD / 2) return;
    const int row = F::attends ? (2 * i / HEAD * p.columns + item.column) * HEAD + 2 * i % HEAD
                               : item.column * (3 * HEAD) + 2 * i;
    u32 bias[2] = {0, 0};
    if (F::attends || row < p.rows) load_global(bias, p.bias + row);
    store_shared(at.bias(group) + i * 8, bias[0], bias[1]);
  }

  using Bias = float[2];  // of two neighbouring columns
  // Of this lane's columns of tile n.
  __device__ __forceinline__ void take_bias(Bias& bias, int n) const {
    u32 b[2];
    load_shared(b, at.bias(group) + n * 32 + lane() % 4 * 8);
    bias[0] = __uint_as_float(b[0]), bias[1] = __uint_as_float(b[1]);
  }
  // Tiles n and n + 1 of half of the tokens, as store_matrices takes them.
  __device__ __forceinline__ void finish(u32 (&v)[4], const Product (&d)[2], const Gains& g, const Bias (&bias)[2],
                                         int half, int n) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* c = d[half][n + i / 2] + i % 2 * 2;
      const float gain = g[half][i % 2];
      v[i] = Pair<T>::pack(c[0] * gain + bias[i / 2][0], c[1] * gain + bias[i / 2][1]);
    }
  }

  // The warp's 16 rows of half of the tokens, HEAD channels wide, from its own rows of shared memory at `from` to channel
  // `channel` of the result.
  __device__ __forceinline__ void store_rows(u32 from, const Item& item, int half, u32 channel) const {
    fence_async_proxy();
    __syncwarp();
    if (lane() == 0) {
      const auto place = at.place(item, half * 64 + warp() * 16);
      store_tensor(&p.out, from, channel, place.element, place.sequence, item.outer, keep_in_l2(p.keep));
      store_commit();
    }
  }
  // Before rows are written again.
  static __device__ __forceinline__ void wait_for_stores() {
    if (lane() == 0) store_wait_read();
    __syncwarp();
  }

  // For each item of the group.
  template <class Body>
  __device__ __forceinline__ void for_items(const Body& body) const {
    u32 turn = group;
#pragma unroll 1
    for (u32 number = at.first() + group * at.step(); number < at.end(); number += 2 * at.step(), turn += 2)
      body(turn, at.item(number));
  }
};

// What all threads of the kernel do.
template <class F, class Group>
__device__ __forceinline__ void run_qkv(const QkvParams& p, unsigned char* memory) {
  const QkvBlock<F> block{p, shared_address(memory)};
  block.prepare();
  wait_for_previous_grid();
  let_next_grid_start();
  // The same in all lanes, and known to be.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0), group = warp / 4;
  if (group == QkvPlan::kGroups) {
    give_registers_back<F::plan.load_registers()>();
    const int own = warp - QkvPlan::kGroups * 4;
    if (own == 0 && threadIdx.x % 32 == 0) block.load();
    if constexpr (F::held > 0) {
      if (own > 0) block.find_gains(own - 1);
    }
  } else {
    take_registers<F::plan.compute_registers()>();
    Group{{block, p, group}}.run();
    if (threadIdx.x % 32 == 0) store_wait();
  }
}

#endif

}  // namespace warpweave::kernels::long_attention
