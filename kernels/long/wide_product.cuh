// The product of wide tokens and weights, whose results stay in registers, for compute capability 9.0: what wide_store.cuh
// and wide_attention.cuh have in common.
//
// An item is 128 tokens by 3 HEAD columns. Two groups take turns: while one works on its results, the other multiplies,
// and the tensor cores are never without work. A third one loads chunks of 64 channels of tokens and weights through a
// ring (copy engine, mbarriers). Blocks do the items of the same tokens at the same time, so that all but one read them
// from L2.
//
// Tokens come as they are. The norm is applied to results: its gain for channels is part of the weights, whose rows sum up
// to zero so that a token's mean meets nothing, and results are multiplied by one over the token's deviation.
#pragma once

#include "common/types.cuh"
#include "long/attention_ring.cuh"
#include "long/wide_params.h"
#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/l2.cuh"
#include "ptx/matrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace warpweave::kernels::long_attention {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class Element, int HEAD, int SLOT>
struct WideForm {
  using T = Element;
  static constexpr WidePlan plan{HEAD, SLOT};
  static constexpr int head = HEAD, slot = SLOT, tiles = HEAD / 8;
  static constexpr bool attends = SLOT > 0;
};

// The places of a block's shared memory, its items, and what loads.
template <class F>
struct WideBlock {
  static constexpr WidePlan plan = F::plan;
  using Stage = Cursor<plan.stages()>;
  struct Item {
    u32 column;
    u32 element, sequence, outer;  // of the first token
  };
  struct Place {
    u32 element, sequence;
  };

  const WideParams& p;
  u32 shared;

  __device__ __forceinline__ u32 elements() const { return F::attends ? F::slot : 1u << p.slot_bits; }
  __device__ __forceinline__ u32 chunks() const { return (p.dim + 63u) / 64; }
  __device__ __forceinline__ Item item(u32 number) const {
    Item i;
    u32 tile = p.by_columns.divide(number);
    i.column = number - tile * p.columns, i.element = 0;
    if constexpr (!F::attends) {
      const u32 sequence = p.by_along.divide(tile);
      i.element = (tile - sequence * p.along) * elements();
      tile = sequence;
    }
    i.outer = p.by_across.divide(tile);
    i.sequence = (tile - i.outer * p.across) * (WidePlan::kTokens / elements());
    return i;
  }
  // Row 0 .. 127 of an item.
  __device__ __forceinline__ Place place(const Item& i, u32 row) const {
    const u32 bits = F::attends ? 31 - __clz(F::slot) : p.slot_bits;
    return {i.element + (row & ((1u << bits) - 1)), i.sequence + (row >> bits)};
  }

  __device__ __forceinline__ u32 tokens(u32 stage) const { return shared + stage * plan.stage_bytes(); }
  __device__ __forceinline__ u32 weights(u32 stage) const { return tokens(stage) + WidePlan::kChunkBytes; }
  __device__ __forceinline__ u32 own(int group) const { return shared + plan.groups_at() + group * plan.group_bytes(); }
  __device__ __forceinline__ u32 bias(int group) const {
    return shared + plan.bias_at() + group * plan.bias_bytes();
  }
  __device__ __forceinline__ u32 full(u32 stage) const { return shared + plan.barriers_at() + stage * 16; }
  __device__ __forceinline__ u32 free(u32 stage) const { return full(stage) + 8; }
  __device__ __forceinline__ u32 turn(int group) const { return full(plan.stages()) + group * 8; }

  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x == 0) {
      prefetch_tensor_map(&p.x);
      prefetch_tensor_map(&p.weight);
      prefetch_tensor_map(&p.out);
      for (u32 at = 0; at < plan.stages(); ++at) {
        barrier_init(full(at), 1);
        barrier_init(free(at), 4);
      }
      for (int group = 0; group < WidePlan::kGroups; ++group) barrier_init(turn(group), 4);
      barrier_init_fence();
    }
    __syncthreads();
  }

  // One thread.
  __device__ __forceinline__ void load() const {
    Stage at;
#pragma unroll 1
    for (u32 number = blockIdx.x; number < static_cast<u32>(p.items); number += gridDim.x) {
      const Item i = item(number);
#pragma unroll 1
      for (u32 chunk = 0; chunk < chunks(); ++chunk) {
        barrier_wait(free(at.place), at.parity ^ 1);
        barrier_expect(full(at.place), plan.stage_bytes());
        copy_tensor(tokens(at.place), &p.x, full(at.place), chunk * 64, i.element, i.sequence, i.outer);
        copy_tensor(weights(at.place), &p.weight, full(at.place), chunk * 64, F::attends ? 0 : i.column * plan.rows(),
                    F::attends ? i.column : 0, 0);
        at.advance();
      }
    }
  }
};

// A group that computes.
template <class F>
struct WideProduct {
  using T = typename F::T;
  using Block = WideBlock<F>;
  using Item = typename Block::Item;
  static constexpr WidePlan plan = F::plan;
  using Product = float[3 * F::tiles][4];  // of 64 tokens
  using Gains = float[2][2];               // of half of the tokens, of the rows lane / 4 and lane / 4 + 8 of a warp's 16

  const Block& at;
  const WideParams& p;
  int group;

  static __device__ __forceinline__ int warp() { return threadIdx.x / 32 % 4; }
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  // All warps of the group.
  __device__ __forceinline__ void meet() const { named_barrier(1 + group, 128); }

  static __device__ __forceinline__ void arrive(u32 barrier) {
    __syncwarp();
    if (lane() == 0) barrier_arrive(barrier);
  }

  // Where 16 bytes, 8 channels, of a row lie.
  static __device__ __forceinline__ u32 piece(u32 base, int row, int column) {
    return base + row * 128 + ((column ^ row % 8) * 16);
  }

  template <bool FIRST>
  __device__ __forceinline__ void multiply_chunk(Product (&d)[2], u32 stage) const {
    const u64 a = swizzled_rows<128>(at.tokens(stage)), b = swizzled_rows<128>(at.weights(stage));
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
    const u32 chunks = at.chunks(), used = turn * chunks;
    typename Block::Stage stage{used % plan.stages(), used / plan.stages() & 1};
    u32 bias[2];
    fetch_bias(bias, item);
    fetch_gains(gains, item);
    // The other group has seen all stages of the item before, so that they are in the phase before the one waited for.
    barrier_wait(at.turn(group), (turn / 2 & 1) ^ (group == 0));
    barrier_wait(at.full(stage.place), stage.parity);
    meet();  // all are done with the item before
    multiply_chunk<true>(d, stage.place);
    put_bias(bias);
    u32 before = stage.place;
    stage.advance();
#pragma unroll 1
    for (u32 chunk = 1; chunk < chunks; ++chunk) {
      barrier_wait(at.full(stage.place), stage.parity);
      multiply_chunk<false>(d, stage.place);
      wgmma_wait<1>();
      arrive(at.free(before));
      before = stage.place;
      stage.advance();
    }
    arrive(at.turn(group ^ 1));
    wgmma_wait<0>();
    wgmma_settle(d[0]);
    wgmma_settle(d[1]);
    arrive(at.free(before));
    finish_gains(gains, item);
    meet();  // the bias is there
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

  // Two columns a thread, to shared memory once the item before needs its own no more.
  __device__ __forceinline__ void fetch_bias(u32 (&bias)[2], const Item& item) const {
    constexpr int HEAD = F::head;
    const int i = threadIdx.x % 128;
    const int row = F::attends ? (2 * i / HEAD * p.columns + item.column) * HEAD + 2 * i % HEAD
                               : item.column * (3 * HEAD) + 2 * i;
    bias[0] = bias[1] = 0;
    if (i < 3 * HEAD / 2 && (F::attends || row < p.rows)) load_global(bias, p.bias + row);
  }
  __device__ __forceinline__ void put_bias(const u32 (&bias)[2]) const {
    const int i = threadIdx.x % 128;
    if (i < 3 * F::head / 2) store_shared(at.bias(group) + i * 8, bias[0], bias[1]);
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
    for (u32 number = blockIdx.x + group * gridDim.x; number < static_cast<u32>(p.items); number += 2 * gridDim.x, turn += 2)
      body(turn, at.item(number));
  }
};

// What all threads of the kernel do.
template <class F, class Group>
__device__ __forceinline__ void run_wide(const WideParams& p, unsigned char* memory) {
  const WideBlock<F> block{p, shared_address(memory)};
  block.prepare();
  wait_for_previous_grid();
  let_next_grid_start();
  // The same in all lanes, and known to be.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
  if (group == WidePlan::kGroups) {
    give_registers_back<WidePlan::kLoadRegisters>();
    if (threadIdx.x == WidePlan::kGroups * 128) block.load();
  } else {
    take_registers<WidePlan::kComputeRegisters>();
    Group{{block, p, group}}.run();
    if (threadIdx.x % 32 == 0) store_wait();
  }
}

#endif

}  // namespace warpweave::kernels::long_attention
