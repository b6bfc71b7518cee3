// Projections of wide tokens (compute capability 9.0): QKV of tokens that are normalised on the way, with bias and
// RoPE, and the output projection with bias and residual.
//
//   y[t, 0 .. n) = rope(scale * (norm(x[t, 0 .. k)) W^T) + bias) + residual[t]
//
// The norm is applied to results: norm(x) W^T = (x W^T - mean sum) / deviation, `sum` being that of a row of W (the gain
// is folded into W, and W's rows are centred, so that it is next to nothing). So both operands come by the copy engine
// as they lie in memory, and warps that look at the tokens as they pass find mean and deviation.
//
// A tile is 128 tokens by `columns` outputs; two warpgroups take 64 tokens each. Of a third, one warp loads, 64 input
// channels at a time, through a ring of stages on mbarriers, and the others take the moments. Blocks stay and go from tile to tile; neighbouring blocks have the same
// tokens. There are two accumulators: the results of a tile are finished and stored, 32 channels at a time, between the
// products of the next one.
//
// Outputs are permuted (layout/WidePlan), so that a lane has 8 neighbouring channels of a token: 16-byte accesses.
// Shared memory: layout/WidePlan. Limit: 2 k n flops a token; 128 x 512 tokens, 768 -> 2304: 232 GFLOP, 295 us at 787
// TFLOP/s.
#pragma once

#include "long/project_moments.cuh"
#include "long/project_wide_params.h"
#include "long/project_wide_plan.h"
#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/matrix.cuh"
#include "ptx/mma.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace warpweave::kernels::long_sequences {

// Options, one bit each.
enum WideFlag : int {
  wide_from_grid = 1,  // x is the grid and y dense; else the other way round
  wide_scaled = 2,
  wide_biased = 4,
  wide_residual = 8,
  wide_mask = 16,     // zeros for K and V of masked cells: y is q | k | v, a third of n each
  wide_rope = 32,     // likewise; heads of Head channels, of q and k
  wide_centred = 64,  // results are of tokens less their mean
  wide_normed = 128,  // results are divided by the tokens' deviation
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Brings the box of a tensor map that begins at these coordinates into L2.
__device__ __forceinline__ void prefetch_tensor(const void* map, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(c0), "r"(c1),
               "r"(c2), "r"(c3)
               : "memory");
}

template <class T, int K, int N, int Columns, int Stages, int Flags, int Head>
struct WideProjection {
  static constexpr layout::WidePlan plan{K, N, Columns, Stages};
  static constexpr bool grid_in = (Flags & wide_from_grid) != 0, scale = (Flags & wide_scaled) != 0,
                        bias = (Flags & wide_biased) != 0, residual = (Flags & wide_residual) != 0,
                        mask = (Flags & wide_mask) != 0, rope = (Flags & wide_rope) != 0,
                        centred = (Flags & wide_centred) != 0, normed = (Flags & wide_normed) != 0;
  static constexpr int steps = plan.steps(), pieces = plan.pieces(), tokens = plan.kTokens;
  // Of a thread, where 168 were given at the launch; more than all of them would be waited for in vain.
  static constexpr int compute_registers = normed ? 232 : 240, other_registers = normed ? 40 : 24;
  static_assert(2 * compute_registers + other_registers <= 3 * 168 && !(normed && residual));
  static constexpr int q_and_k = N / 3 * 2;  // channels of y before those of v
  static constexpr u32 token_bytes = tokens * 128;
  using Sums = float[Columns / 8][4];
  using TokenMoments = Moments<T, K, centred>;

  const WideParams& p;
  u32 shared;
  int group;  // of this thread; the last one loads

  // A place in the ring, and the parity of the phase in which it is met there.
  struct Cursor {
    u32 stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
      if (++stage == Stages) stage = 0, parity ^= 1;
    }
  };
  __device__ __forceinline__ u32 full(u32 stage) const { return shared + plan.barriers() + stage * 8; }
  __device__ __forceinline__ u32 empty(u32 stage) const { return full(Stages + stage); }
  __device__ __forceinline__ u32 tokens_at(u32 stage) const { return shared + stage * plan.stage_bytes(); }
  __device__ __forceinline__ u32 weights_at(u32 stage) const { return tokens_at(stage) + token_bytes; }
  // Of the block's tile number `tile`.
  __device__ __forceinline__ u32 constants_at(int tile) const {
    return shared + plan.constants() + tile % plan.tiles_under_way() * plan.constants_bytes();
  }
  __device__ __forceinline__ u32 moments_at(int tile) const {
    return shared + plan.moments() + tile % plan.tiles_under_way() * plan.moments_bytes();
  }
  __device__ __forceinline__ u32 moments_full(int tile) const {
    return full(2 * Stages + tile % plan.tiles_under_way());
  }

  // By a warp that is done with what a barrier guards.
  static __device__ __forceinline__ void release(u32 barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }

  // Item i is output tile i % tiles of token tile i / tiles.
  __device__ __forceinline__ int items() const { return p.tokens.pieces * p.tokens.tiles * plan.tiles(); }
  struct Place {
    int piece, first;  // of the tokens
    int column_tile;
  };
  __device__ __forceinline__ Place place(int item) const {
    const int tile = item / plan.tiles();
    return {tile / p.tokens.tiles, tile % p.tokens.tiles * tokens, item % plan.tiles()};
  }

  // ---- the thread that loads

  // Weights of a step and, with those of the first one, the constants.
  __device__ __forceinline__ void load_weights(const Cursor& at, int tile, int column_tile, int step) const {
    const char* weights = static_cast<const char*>(p.weights);
    barrier_wait(empty(at.stage), at.parity ^ 1);
    barrier_expect(full(at.stage), plan.stage_bytes() + (step == 0 ? plan.constants_bytes() : 0));
    copy_bulk(weights_at(at.stage), weights + (static_cast<i64>(column_tile) * steps + step) * plan.step_bytes(),
              plan.step_bytes(), full(at.stage));
    if (step == 0)
      copy_bulk(constants_at(tile), weights + layout::WidePlan(plan).constants_of(column_tile), plan.constants_bytes(), full(at.stage));
  }

  __device__ __forceinline__ void load() const {
    // The first weights, which no earlier launch writes, before the launches before this one are done.
    constexpr int early = Stages < steps ? Stages : steps;
    Cursor at;
    for (int step = 0; step < early; ++step, at.advance())
      load_weights(at, 0, place(blockIdx.x).column_tile, step);
    wait_for_previous_grid();
    let_next_grid_start();
    at = {};
    int tile = 0;
    for (int item = blockIdx.x; item < items(); item += gridDim.x, ++tile) {
      const Place here = place(item);
      if constexpr (residual) {  // into L2; it is added after the next tile's first products
        for (int c = 0; c < Columns; c += plan.kStep)
          prefetch_tensor(&p.added, here.column_tile * Columns + c, here.first, here.piece, 0);
      }
#pragma unroll 1
      for (int step = 0; step < steps; ++step, at.advance()) {
        if (tile > 0 || step >= early) load_weights(at, tile, here.column_tile, step);
        copy_tensor(tokens_at(at.stage), &p.x, full(at.stage), step * plan.kStep, here.first, here.piece, 0);
      }
    }
  }

  // ---- the warps that look at tokens, 16 of them at a time

  static constexpr int lookers = 3, looks = (tokens / 16 + lookers - 1) / lookers;

  __device__ __forceinline__ void look() const {
    const int own = threadIdx.x / 32 - 9, lane = threadIdx.x % 32;
    Cursor at;
    int tile = 0;
    for (int item = blockIdx.x; item < items(); item += gridDim.x, ++tile) {
      TokenMoments moments[looks];
#pragma unroll 1
      for (int step = 0; step < steps; ++step, at.advance()) {
        barrier_wait(full(at.stage), at.parity);
#pragma unroll
        for (int i = 0; i < looks; ++i) {
          const int sixteen = own + i * lookers;
          if (sixteen >= tokens / 16) break;
          const u32 rows = tokens_at(at.stage) + sixteen * 16 * 128;
          if (step == 0) moments[i].begin(rows);
          moments[i].add(rows, step * plan.kStep);
        }
        release(empty(at.stage));
      }
#pragma unroll
      for (int i = 0; i < looks; ++i) {
        const int sixteen = own + i * lookers;
        if (sixteen >= tokens / 16) break;
        const float2 found = moments[i].found(p.eps);
        if (lane % 2 == 0)
          store_shared(moments_at(tile) + (sixteen * 16 + lane / 2) * 8, __float_as_uint(found.x),
                       __float_as_uint(found.y));
      }
      release(moments_full(tile));
    }
  }

  // ---- the groups that compute

  // This lane's two tokens of a tile.
  struct Tokens {
    i64 row;  // of y and of the residual; that of the other token is 8 further
    float offset[2], gain[2];
    int token;
    bool present[2], valid[2];
    int column;       // the first of this lane's in the tile
    u32 constants;    // of them, in shared memory
    u32 added[2][4];  // of the residual, for the piece that is finished next
  };

  __device__ __forceinline__ i64 cell(const Place& here, int index) const {
    return p.tokens.first + here.piece * p.tokens.pitch + index;
  }

  __device__ __forceinline__ void find(Tokens& t, const Place& here, int tile) const {
    const int lane = threadIdx.x % 32, in_tile = group * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4,
              first = here.first + in_tile;
    t.column = here.column_tile * Columns + lane % 4 * 8;
    t.constants = constants_at(tile) + lane % 4 * 32;
    t.token = here.piece * p.tokens.length + first;
    t.row = grid_in ? t.token : cell(here, first);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int index = first + half * 8;
      t.present[half] = index < p.tokens.length;
      if constexpr (mask) t.valid[half] = t.present[half] && p.mask[cell(here, index)] != 0;
    }
    fetch(t, 0);
    if constexpr (normed) {
      barrier_wait(moments_full(tile), tile / plan.tiles_under_way() % 2);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        u32 found[2];
        load_shared(found, moments_at(tile) + (in_tile + half * 8) * 8);
        t.offset[half] = __uint_as_float(found[0]), t.gain[half] = __uint_as_float(found[1]);
      }
      if constexpr (centred) {
        const bool far[2] = {t.present[0] && is_far<T>(t.offset[0]), t.present[1] && is_far<T>(t.offset[1])};
        if (__any_sync(0xffffffffu, far[0] || far[1])) project_far(t, far, here, first);
      }
    }
  }

  // Tokens whose mean is so much larger than their deviation that `mean sum` would cost digits: normalised first, and
  // multiplied and stored by the warp alone, operands straight from memory.
  __device__ __forceinline__ void project_far(Tokens& t, const bool (&far)[2], const Place& here, int first) const {
    const int lane = threadIdx.x % 32;
    Tokens u = t;
    const char* x[2];
    float mean[2], gain[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      x[half] = static_cast<const char*>(p.tokens_x) + cell(here, first + half * 8) * (K * 2);
      mean[half] = t.offset[half] / t.gain[half], gain[half] = t.gain[half];
      u.present[half] = far[half], t.present[half] &= !far[half];
      u.offset[half] = 0, u.gain[half] = 1;
    }
    const char* weights = static_cast<const char*>(p.weights) + static_cast<i64>(here.column_tile) * plan.tile_bytes();
#pragma unroll 1
    for (int piece = 0; piece < pieces; ++piece) {
      float sums[4][4] = {};
#pragma unroll 1
      for (int k = 0; k < steps * plan.kStep; k += 16) {
        u32 a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int channel = k + i / 2 * 8 + lane % 4 * 2, half = i % 2;
          a[i] = 0;
          if (channel < K && far[half]) {
            const u32 v = load_global(x[half] + channel * 2);
            a[i] = Pair<T>::pack((Pair<T>::first(v) - mean[half]) * gain[half],
                                 (Pair<T>::second(v) - mean[half]) * gain[half]);
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int place = piece * 32 + i * 8 + lane / 4, channel = k + lane % 4 * 2;
          mma<T>(sums[i], a, load_global(weights + layout::WidePlan(plan).byte_of(0, place, channel)),
                 load_global(weights + layout::WidePlan(plan).byte_of(0, place, channel + 8)));
        }
      }
      finish(sums, u, piece);
    }
  }

  __device__ __forceinline__ i64 byte(const Tokens& t, int half, int piece) const {
    return ((t.row + half * 8) * N + t.column + piece * 32) * 2;
  }
  __device__ __forceinline__ bool has(const Tokens& t, int piece) const {
    return N % Columns == 0 || t.column + piece * 32 < N;
  }

  // The residual of a piece is on its way during the products before it is finished.
  __device__ __forceinline__ void fetch(Tokens& t, int piece) const {
    if constexpr (residual) {
      if (piece == pieces || !has(t, piece)) return;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (t.present[half]) load_global(t.added[half], static_cast<const char*>(p.residual) + byte(t, half, piece));
    }
  }

  // Adds the products of a step.
  template <bool First>
  __device__ __forceinline__ void multiply(Sums& d, const Cursor& at) const {
    barrier_wait(full(at.stage), at.parity);
    const u64 a = swizzled_rows<128>(tokens_at(at.stage) + group * (token_bytes / 2));
    const u64 b = swizzled_rows<128>(weights_at(at.stage));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < plan.kStep / 16; ++i) {
      if (First && i == 0)
        Wgmma<T, Columns>::template shared<false>(d, a, b);
      else
        Wgmma<T, Columns>::template shared<true>(d, a + 2 * i, b + 2 * i);
    }
    wgmma_commit();
  }

  // d = tokens times weights of a tile. Between the steps, while products are under way, between(0) .. between(pieces -
  // 1) are called.
  template <class Between>
  __device__ __forceinline__ void multiply(Sums& d, Cursor& at, const Between& between) const {
    u32 before = at.stage;
    multiply<true>(d, at);
    wgmma_wait<1>();  // nothing older is under way, which the compiler does not know
    at.advance();
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece) {
      const int begin = (steps * piece + pieces - 1) / pieces, end = (steps * (piece + 1) + pieces - 1) / pieces;
#pragma unroll 1
      for (int step = max(begin, 1); step < end; ++step) {
        multiply<false>(d, at);
        wgmma_wait<1>();
        release(empty(before));
        before = at.stage;
        at.advance();
      }
      between(piece);
    }
    wgmma_wait<0>();
    wgmma_settle(d);
    release(empty(before));
  }

  // Constants of 4 neighbouring output channels.
  static __device__ __forceinline__ void constants(float (&v)[4], u32 address) {
    u32 w[4];
    load_shared(w, address);
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = __uint_as_float(w[j]);
  }

  // Pairs of neighbouring channels of a head turn by the angles of the token's position.
  __device__ __forceinline__ void rotate(float (&v)[4], int position, int column) const {
    const float4 t = *reinterpret_cast<const float4*>(p.rotation + static_cast<i64>(position) * Head + column % Head);
    const float a = v[0], b = v[2];
    v[0] = a * t.x - v[1] * t.y;
    v[1] = v[1] * t.x + a * t.y;
    v[2] = b * t.z - v[3] * t.w;
    v[3] = v[3] * t.z + b * t.w;
  }

  // 32 channels of the tile's results, 8 of each of this lane's tokens, of four products of 8 channels.
  __device__ __forceinline__ void finish(const float (*d)[4], Tokens& t, int piece) const {
    if (!has(t, piece)) return;
    const int column = t.column + piece * 32;
    u32 w[2][4];
#pragma unroll
    for (int four = 0; four < 2; ++four) {
      const u32 own = t.constants + piece * 128 + four * 16;
      float factor[4], add[4], sum[4];
      if constexpr (scale) constants(factor, own + plan.scale());
      if constexpr (bias) constants(add, own + plan.bias());
      if constexpr (centred) constants(sum, own + plan.sum());
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          v[j] = d[2 * four + j / 2][2 * half + j % 2];
          if constexpr (scale) v[j] *= factor[j];
          float more = bias ? add[j] : 0.0f;
          if constexpr (centred) more -= t.offset[half] * sum[j];
          v[j] = normed ? v[j] * t.gain[half] + more : v[j] + more;
        }
        if constexpr (rope) {
          if (column < q_and_k) rotate(v, (t.token + half * 8) / p.position_divisor % p.length, column + four * 4);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if constexpr (residual) {
            v[2 * j] += Pair<T>::first(t.added[half][2 * four + j]);
            v[2 * j + 1] += Pair<T>::second(t.added[half][2 * four + j]);
          }
          w[half][2 * four + j] = Pair<T>::pack(v[2 * j], v[2 * j + 1]);
          if constexpr (mask)
            w[half][2 * four + j] = t.valid[half] || column < q_and_k / 2 ? w[half][2 * four + j] : 0;
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (t.present[half])
        store_global(static_cast<char*>(p.y) + byte(t, half, piece), w[half][0], w[half][1], w[half][2], w[half][3]);
    fetch(t, piece + 1);
  }

  __device__ __forceinline__ void finish(const Sums& d, Tokens& t) const {
#pragma unroll
    for (int piece = 0; piece < pieces; ++piece) finish(d + 4 * piece, t, piece);
  }

  __device__ __forceinline__ void compute() const {
    const int count = items();
    Cursor at;
    Sums d, e;  // turn about
#pragma unroll
    for (int i = 0; i < Columns / 8; ++i) e[i][0] = e[i][1] = e[i][2] = e[i][3] = 0;
    Tokens t{}, u{};  // nothing to store yet
    u.constants = constants_at(0);
    int item = blockIdx.x, tile = 0;
#pragma unroll 1
    while (item < count) {
      multiply(d, at, [&](int piece) { finish(e + 4 * piece, u, piece); });
      find(t, place(item), tile);
      item += gridDim.x, ++tile;
      if (item >= count) return finish(d, t);
      multiply(e, at, [&](int piece) { finish(d + 4 * piece, t, piece); });
      find(u, place(item), tile);
      item += gridDim.x, ++tile;
    }
    finish(e, u);
  }

  // ---- both

  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x == 0) {
      prefetch_tensor_map(&p.x);
      for (u32 stage = 0; stage < Stages; ++stage) {
        barrier_init(full(stage), 1);
        barrier_init(empty(stage), normed ? 8 + lookers : 8);  // warps
      }
      for (int tile = 0; tile < plan.tiles_under_way(); ++tile) barrier_init(moments_full(tile), lookers);
      barrier_init_fence();
    }
    __syncthreads();
  }
};

#endif

template <class T, int K, int N, int Columns, int Stages, int Flags, int Head>
__global__ void __launch_bounds__(layout::WidePlan::kThreads, 1) project_wide(const __grid_constant__ WideParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  // The same in all lanes, and known to be.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
  using Work = WideProjection<T, K, N, Columns, Stages, Flags, Head>;
  const Work work{p, shared_address(memory), group};
  work.prepare();
  if (group == 2) {
    give_registers_back<Work::other_registers>();
    if (threadIdx.x == 2 * 128) work.load();
    if (Work::normed && threadIdx.x >= 2 * 128 + 32) work.look();
  } else {
    take_registers<Work::compute_registers>();
    wait_for_previous_grid();
    work.compute();
  }
#endif
}

}  // namespace warpweave::kernels::long_sequences
