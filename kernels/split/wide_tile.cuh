// A block's tiles of a product of tokens by a weight on compute capability 9.0, operands in parts (parts.cuh): wgmma on
// operands that lie in shared memory. What tile.cuh is for mma.sync, and with the same results to store.
//
// GROUPS warpgroups own 64 tokens x 128 columns each; the copy engine brings 32 of k at a time through a ring of STAGES.
// Where a block is alone on its multiprocessor one more warp sends for them (LOADER), which is up to 10 % faster; where two
// are, it would cost the registers of both, and the warp that releases a stage last sends for what comes into it next.
// Of a stage, and of tokens in shared memory, a panel is [part][row][32 of k], 64 bytes a row, turned as the copy engine
// does it.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "split/tile.cuh"

namespace warpweave::kernels::split {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int WIDE_COLUMNS = 128;
using WideSums = float[WIDE_COLUMNS / 8][4];

// Address in a panel that begins at a multiple of 512 bytes.
__device__ __forceinline__ u32 panel_address(u32 panel, int row, int k) {
  return panel + row * STAGE_PART + ((k / 8) ^ (row / 2 % 4)) * 16 + k % 8 * 2;
}

// Threads of a block.
constexpr int wide_threads(int groups, int blocks) { return groups * 128 + (blocks == 1 ? 32 : 0); }

// Stages of STAGE_BYTES bytes, from `stages` on; 32 bytes each of barriers and counter from `barriers` on. A place in the
// order of all turns of the block, of which there are `turns`. send(stage, full, turn) has the copy engine bring what a
// turn needs.
template <int GROUPS, int STAGES, int STAGE_BYTES, bool LOADER>
struct Ring {
  static constexpr int BARRIER_BYTES = 32 * STAGES;
  u32 stages, barriers;
  int turns, turn = 0;
  u32 at = 0, parity = 0;

  __device__ __forceinline__ u32 full() const { return barriers + at * 32; }
  __device__ __forceinline__ u32 empty() const { return full() + 8; }
  __device__ __forceinline__ u32 stage() const { return stages + at * STAGE_BYTES; }
  __device__ __forceinline__ void advance() {
    ++turn;
    if (++at == STAGES) at = 0, parity ^= 1;
  }
  // By one thread; the block meets afterwards.
  __device__ __forceinline__ void prepare() const {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(barriers + i * 32, 1);
      barrier_init(barriers + i * 32 + 8, GROUPS * 4);
      if (!LOADER) store_shared(barriers + i * 32 + 16, 0u);
    }
    barrier_init_fence();
  }
  // By one thread: without LOADER the first stages, else all.
  template <class Send>
  __device__ __forceinline__ void load(const Send& send) {
    if constexpr (LOADER) {
#pragma unroll 1
      while (turn < turns) {
        barrier_wait(empty(), parity ^ 1);
        barrier_expect(full(), STAGE_BYTES);
        send(stage(), full(), turn);
        advance();
      }
    } else {
      for (int i = 0; i < STAGES && i < turns; ++i) {
        barrier_expect(barriers + i * 32, STAGE_BYTES);
        send(stages + i * STAGE_BYTES, barriers + i * 32, i);
      }
    }
  }
  // This warp has done with the stage. Without LOADER the barrier orders the reads of all warps before the copy, the counter
  // tells who is last.
  template <class Send>
  __device__ __forceinline__ void release(const Send& send) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      barrier_arrive(empty());
      if constexpr (!LOADER) {
        u32 before;
        asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;" : "=r"(before) : "r"(full() + 16) : "memory");
        if (before == GROUPS * 4 - 1) {
          store_shared(full() + 16, 0u);
          barrier_wait(empty(), parity);
          fence_async_proxy();
          if (turn + STAGES < turns) {
            barrier_expect(full(), STAGE_BYTES);
            send(stage(), full(), turn + STAGES);
          }
        }
      }
    }
    if constexpr (!LOADER) __syncwarp();
  }
};

// sums += 64 rows of panels at `a` times 128 rows of panels at `w`, over 32 of k; TOKENS: rows of a panel of `a`. In fp32
// sums begin at zero and are added up outside, since the tensor core truncates as it accumulates. In tf32 the product is
// under way on return, and the first one sets the sums.
template <int PARTS, int TOKENS, bool FIRST>
__device__ __forceinline__ void multiply_panels(WideSums& sums, u32 a, u32 w) {
  const u64 a_high = swizzled_rows<STAGE_PART>(a), w_high = swizzled_rows<STAGE_PART>(w);
  const u64 w_low = w_high + WIDE_COLUMNS * STAGE_PART / 16;
  using Product = Wgmma<f16, WIDE_COLUMNS>;
  if constexpr (PARTS == 2) {
    const u64 a_low = a_high + TOKENS * STAGE_PART / 16;
    WideSums fresh;
    wgmma_fence();
    Product::template shared<false>(fresh, a_low, w_high);
    Product::template shared<true>(fresh, a_high, w_low);
    Product::template shared<true>(fresh, a_high, w_high);
    Product::template shared<true>(fresh, a_low + 2, w_high + 2);
    Product::template shared<true>(fresh, a_high + 2, w_low + 2);
    Product::template shared<true>(fresh, a_high + 2, w_high + 2);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(fresh);
#pragma unroll
    for (int n = 0; n < WIDE_COLUMNS / 8; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) sums[n][r] = FIRST ? fresh[n][r] : sums[n][r] + fresh[n][r];
    }
  } else {
    wgmma_fence();
    Product::template shared<!FIRST>(sums, a_high, w_low);
    Product::template shared<true>(sums, a_high, w_high);
    Product::template shared<true>(sums, a_high + 2, w_low + 2);
    Product::template shared<true>(sums, a_high + 2, w_high + 2);
    wgmma_commit();
  }
}

// sums = the product over `steps` stages; a_panel(step, stage) is where the group's tokens lie.
template <int PARTS, int TOKENS, class R, class Send, class Panel>
__device__ __forceinline__ void multiply_stages(WideSums& sums, R& ring, const Send& send, int steps, const Panel& a_panel,
                                                u32 weight_at) {
  barrier_wait(ring.full(), ring.parity);
  multiply_panels<PARTS, TOKENS, true>(sums, a_panel(0, ring.stage()), ring.stage() + weight_at);
  R before = ring;
  if constexpr (PARTS == 2) before.release(send);
  ring.advance();
#pragma unroll 1
  for (int step = 1; step < steps; ++step) {
    barrier_wait(ring.full(), ring.parity);
    multiply_panels<PARTS, TOKENS, false>(sums, a_panel(step, ring.stage()), ring.stage() + weight_at);
    if constexpr (PARTS == 2) {
      ring.release(send);
    } else {
      wgmma_wait<1>();
      before.release(send);
      before = ring;
    }
    ring.advance();
  }
  if constexpr (PARTS == 1) {
    wgmma_wait<0>();
    wgmma_settle(sums);
    before.release(send);
  }
}

// Factor and bias of a tile's columns in shared memory, on their way during the products: 1 KB.
struct TileConstants {
  static constexpr int BYTES = 2 * WIDE_COLUMNS * 4;
  u32 shared;
  int first_column;

  // By the threads of a group; wait() makes them visible to it.
  __device__ __forceinline__ void fetch(const Weight& weight) const {
    const int i = threadIdx.x % 128;
    if (i < BYTES / 16) {
      const float* const from = (i < BYTES / 32 ? weight.factor : weight.bias) + first_column + i % (BYTES / 32) * 4;
      copy_async<16>(shared + i * 16, from);
    }
    copy_commit();
  }
  __device__ __forceinline__ void wait(int group) const {
    copy_wait<0>();
    named_barrier(2 + group, 128);
  }
  __device__ __forceinline__ Constants operator()(int column) const {
    Constants v;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const u32 at = shared + (column - first_column) * 4 + i * 16;
      u32 f[4], b[4];
      load_shared(f, at);
      load_shared(b, at + BYTES / 2);
#pragma unroll
      for (int j = 0; j < 4; ++j) v.factor[4 * i + j] = __uint_as_float(f[j]), v.bias[4 * i + j] = __uint_as_float(b[j]);
    }
    return v;
  }
};

using Piece = float[1][4][4];  // 16 tokens x 32 columns of a warp

__device__ __forceinline__ const Piece& piece_of(const WideSums& sums, int i) {
  return reinterpret_cast<const Piece&>(sums[4 * i]);
}

template <int PARTS, int HEAD>
__device__ __forceinline__ void store_wide_heads(const WideSums& sums, const HeadsParams& p, const TileConstants& constants,
                                                 i64 token) {
#pragma unroll
  for (int i = 0; i < WIDE_COLUMNS / 32; ++i)
    store_heads<PARTS, HEAD>(piece_of(sums, i), p, constants, token, constants.first_column + 32 * i);
}

// y[cell(t), n] = r[t, n] + residual[cell(t), n]. The residual of AT_ONCE pieces is loaded before any of it is used.
template <bool RESIDUAL, int AT_ONCE>
__device__ __forceinline__ void store_wide_grid(const WideSums& sums, const OutputParams& p, const TileConstants& constants,
                                                i64 token) {
  constexpr int PIECES = WIDE_COLUMNS / 32;
  const int row = static_cast<int>(threadIdx.x % 32) / 4, first = lane_column(constants.first_column);
  i64 place[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const i64 t = token + half * 8 + row;
    place[half] = t < p.tokens ? cell_of(p.cells, t) * p.n + first : -1;
  }
#pragma unroll
  for (int begin = 0; begin < PIECES; begin += AT_ONCE) {
    float4 x[AT_ONCE][2][2] = {};
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int column = 32 * (begin + i) + 4 * j;
          if (RESIDUAL && place[half] >= 0 && first + column < p.n)
            x[i][half][j] = *reinterpret_cast<const float4*>(p.residual + place[half] + column);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      if (first + 32 * (begin + i) >= p.n) break;
      int half = 0;
      for_each_token(piece_of(sums, begin + i), constants(first + 32 * (begin + i)), [&](int, const float(&v)[8]) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int column = 32 * (begin + i) + 4 * j;
          const float4 r = x[i][half][j];
          if (place[half] >= 0 && first + column < p.n)
            *reinterpret_cast<float4*>(p.y + place[half] + column) = {r.x + v[4 * j], r.y + v[4 * j + 1], r.z + v[4 * j + 2],
                                                                      r.w + v[4 * j + 3]};
        }
        ++half;
      });
    }
  }
}

#endif

}  // namespace warpweave::kernels::split
