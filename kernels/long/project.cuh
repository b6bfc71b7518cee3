// Projections of tokens that write each result once (compute capability 9.0): norm + QKV + bias + RoPE, and the output
// projection + bias + residual.
//
//   y[t, 0 .. n) = rope(scale * (norm(x[t, 0 .. k)) W^T) + bias) + residual[t]
//
// `scale` is a power of two per output channel that keeps fp16 weights, into which the norm's gain is folded, in range;
// the norm's bias is part of `bias`. Tokens know nothing of each other, so they are taken in the order of memory, whether
// their layer runs along rows or along columns.
//
// A block keeps a slice of W in shared memory for good: all of it where it fits, else as many blocks as there are slices
// read the same tokens at about the same time, and all but one of them from L2. Its warpgroups go over tiles of 64 tokens
// each on its own, with no barrier between them: while one multiplies, others load, normalise and store. A warp owns 16
// tokens; lane 4 g + c holds channels 8 c .. 8 c + 7 of every 32 of tokens g and g + 8, which are at once a 16-byte
// access and, W being permuted, its part of the A fragments; outputs lie the same way. The next tile's tokens are
// loaded during the products of this one.
//
// Shared memory: a barrier, the slice, and 2 KB a warp to turn results into whole lines (long/project_plan.h), with eight
// warps: 128 -> 384: 115 KB; 256 -> 768 in two slices: 211 KB.
// Limit: bytes. 512 x 512 tokens, 128 -> 384: 67 MB in, 201 MB out, 64 us at 4.2 TB/s; 26 GFLOP, 33 us at 787 TFLOP/s.
#pragma once

#include "common/index.cuh"
#include "long/project_params.h"
#include "long/project_plan.h"
#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/math.cuh"
#include "ptx/matrix.cuh"
#include "ptx/wgmma.cuh"

namespace warpweave::kernels::long_sequences {

enum ProjectNorm { no_norm = 0, layer_norm = 1, rms_norm = 2 };

// Options, one bit each.
enum ProjectFlag : int {
  from_grid = 1,  // x is the grid and y dense; else the other way round
  scaled = 2,
  biased = 4,
  with_residual = 8,
  with_mask = 16,  // zeros for K and V of masked cells: y is q | k | v, a third of n each
  with_rope = 32,  // likewise; heads of Head channels, of q and k
};

template <class T, int K, int N, int Slice, int Chunk, int Groups, int Norm, int Flags, int Head>
struct Projection {
  static constexpr layout::ProjectPlan plan{K, N, Slice, Chunk, Groups};
  static constexpr bool grid_in = (Flags & from_grid) != 0, scale = (Flags & scaled) != 0,
                        bias = (Flags & biased) != 0, residual = (Flags & with_residual) != 0,
                        mask = (Flags & with_mask) != 0, rope = (Flags & with_rope) != 0;
  static constexpr int pieces = plan.k_width() / 32;  // of 32 input channels, 16 bytes a lane
  static constexpr int groups8 = pieces * 4;          // pairs of channels of a token in a lane
  static constexpr int out_pieces = Chunk / 32;
  static constexpr int q_and_k = N / 3 * 2;  // channels of y before those of v
  static_assert(K % 8 == 0 && N % 8 == 0 && Chunk % 32 == 0 && Slice % Chunk == 0, "");

  const ProjectParams& p;
  u32 base;  // of the slice in shared memory
  int first_column;
  int warp, g, c;

  struct Tokens {  // of a warp: g and g + 8 of its tile
    u32 v[2][groups8];
    bool valid[2];  // not masked
  };

  __device__ __forceinline__ i64 cell(int token) const {
    const u32 columns = static_cast<u32>(p.cells.columns), row = static_cast<u32>(token) / columns;
    return p.cells.first + row * p.cells.pitch + (static_cast<u32>(token) - row * columns);
  }
  // Token of this lane, at most the last one: what follows it is computed and not stored.
  __device__ __forceinline__ int token(int tile, int half) const { return tile * 64 + warp % 4 * 16 + half * 8 + g; }
  __device__ __forceinline__ int clamped(int token) const { return min(token, p.tokens - 1); }

  __device__ __forceinline__ void load(Tokens& t, int tile) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = clamped(token(tile, half));
      const i64 row = grid_in ? cell(at) : at;
      const char* from = static_cast<const char*>(p.x) + row * (K * 2) + c * 16;
#pragma unroll
      for (int i = 0; i < pieces; ++i) {
        u32 w[4] = {0, 0, 0, 0};
        if (K % 32 == 0 || i + 1 < pieces || c * 8 < K % 32) load_global(w, from + i * 64);
#pragma unroll
        for (int j = 0; j < 4; ++j) t.v[half][4 * i + j] = w[j];
      }
      if constexpr (mask) t.valid[half] = p.mask[row] != 0;
    }
  }

  // In place. The mean is subtracted before squaring: a variance from sums of squares would cancel at large means.
  __device__ __forceinline__ void normalise(u32 (&v)[groups8]) const {
    if constexpr (Norm == no_norm) return;
    const bool last = K % 32 == 0 || c * 8 < K % 32;  // whether this lane has channels of the last piece
    float x[groups8][2], sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < groups8; ++i) {
      x[i][0] = Pair<T>::first(v[i]), x[i][1] = Pair<T>::second(v[i]);
      if constexpr (Norm == layer_norm) sum += x[i][0] + x[i][1];
    }
    const float mean = Norm == layer_norm ? quad_sum(sum) * (1.0f / K) : 0;
#pragma unroll
    for (int i = 0; i < groups8; ++i) {
      const bool present = i < groups8 - 4 || last;
      x[i][0] = present ? x[i][0] - mean : 0, x[i][1] = present ? x[i][1] - mean : 0;
      squares += x[i][0] * x[i][0] + x[i][1] * x[i][1];
    }
    const float gain = rsqrt_approx(quad_sum(squares) * (1.0f / K) + p.eps);
#pragma unroll
    for (int i = 0; i < groups8; ++i) v[i] = Pair<T>::pack(x[i][0] * gain, x[i][1] * gain);
  }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // d [64, Chunk] = tokens times the rows of W from `chunk` on.
  __device__ __forceinline__ void multiply(float (&d)[Chunk / 8][4], const Tokens& t, int chunk) const {
    const u32 b = core_matrices(base + plan.weight() + chunk * (Chunk / 8 * layout::core_pair_bytes));
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 2 * pieces; ++s) {
      const u32 a[4] = {t.v[0][2 * s], t.v[1][2 * s], t.v[0][2 * s + 1], t.v[1][2 * s + 1]};
      const u32 step = b + s * (Slice / 8 * layout::core_pair_bytes / 16);
      if (s == 0)
        wgmma_registers<T, Chunk, false>(d, a, step);
      else
        wgmma_registers<T, Chunk, true>(d, a, step);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(d);
  }
#endif

  // Constants of 8 neighbouring output channels.
  __device__ __forceinline__ void constants(float (&v)[8], int offset, int column) const {
    u32 w[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_shared(w, base + offset + (column + 4 * i) * 4);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[4 * i + j] = __uint_as_float(w[j]);
    }
  }

  // Pairs of neighbouring channels of a head turn by the angles of the token's position.
  __device__ __forceinline__ void rotate(float (&v)[8], int token, int column) const {
    const int position = clamped(token) / p.position_divisor % p.length;
    const float4* turn = reinterpret_cast<const float4*>(p.rotation + static_cast<i64>(position) * Head + column % Head);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 t = turn[i];
      const float a = v[4 * i], b = v[4 * i + 2];
      v[4 * i] = a * t.x - v[4 * i + 1] * t.y;
      v[4 * i + 1] = v[4 * i + 1] * t.x + a * t.y;
      v[4 * i + 2] = b * t.z - v[4 * i + 3] * t.w;
      v[4 * i + 3] = v[4 * i + 3] * t.z + b * t.w;
    }
  }

  struct Places {  // of the tokens in y and in the residual
    i64 byte[2];
    bool present[2];
  };
  using Added = u32[out_pieces][2][4];

  __device__ __forceinline__ Places places(int tile) const {
    Places at;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = token(tile, half);
      at.present[half] = t < p.tokens;
      at.byte[half] = ((grid_in ? clamped(t) : cell(clamped(t))) * N + first_column + c * 8) * 2;
    }
    return at;
  }
  // Whether this lane's 8 channels of a piece are channels of y.
  __device__ __forceinline__ bool has(int chunk, int piece) const {
    return N % Slice == 0 || first_column + chunk * Chunk + piece * 32 + c * 8 < N;
  }

  __device__ __forceinline__ void load_residual(Added& r, const Places& at, int chunk) const {
#pragma unroll
    for (int i = 0; i < out_pieces; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (has(chunk, i))
          load_global(r[i][half], static_cast<const char*>(p.residual) + at.byte[half] + (chunk * Chunk + i * 32) * 2);
  }

  // Piece i of a product as it is stored: 8 neighbouring channels of this lane's tokens.
  __device__ __forceinline__ void finish(u32 (&w)[2][4], const float (&d)[Chunk / 8][4], const Added& r, const Tokens& t,
                                         int tile, int chunk, int i) const {
    const int in_slice = chunk * Chunk + i * 32 + c * 8, column = first_column + in_slice;
    float factor[8], add[8];
    if constexpr (scale) constants(factor, plan.scale(), in_slice);
    if constexpr (bias) constants(add, plan.bias(), in_slice);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float v[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        v[j] = d[4 * i + j / 2][2 * half + j % 2];
        if constexpr (scale) v[j] *= factor[j];
        if constexpr (bias) v[j] += add[j];
      }
      if constexpr (rope) {
        if (column < q_and_k) rotate(v, token(tile, half), column);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (residual) {
          v[2 * j] += Pair<T>::first(r[i][half][j]);
          v[2 * j + 1] += Pair<T>::second(r[i][half][j]);
        }
        w[half][j] = Pair<T>::pack(v[2 * j], v[2 * j + 1]);
        if constexpr (mask) w[half][j] = t.valid[half] || column < q_and_k / 2 ? w[half][j] : 0;
      }
    }
  }

  // 64 bytes of each of 8 tokens at a time.
  __device__ __forceinline__ void store(const u32 (&w)[2][4], const Places& at, int chunk, int i) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (at.present[half] && has(chunk, i))
        store_global(static_cast<char*>(p.y) + at.byte[half] + (chunk * Chunk + i * 32) * 2, w[half][0], w[half][1],
                     w[half][2], w[half][3]);
  }

  // Two pieces by way of shared memory: 128 bytes of each of 4 tokens at a time. Odd rows are turned by half a row, so
  // that neither way meets a bank twice.
  __device__ __forceinline__ void store(const u32 (&first)[2][4], const u32 (&second)[2][4], int tile, int chunk,
                                        int i) const {
    const int lane = 4 * g + c;
    const u32 turn = base - plan.first_slice() + plan.turn() + warp * plan.turn_bytes();
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u32 row = turn + (8 * half + g) * 128 + c * 16, odd = g % 2 * 64;
      store_shared(row + odd, first[half]);
      store_shared(row + (64 - odd), second[half]);
    }
    __syncwarp();
    const int column = first_column + chunk * Chunk + i * 32 + lane % 8 * 8;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = 4 * k + lane / 8, at = tile * 64 + warp % 4 * 16 + row;
      u32 w[4];
      load_shared(w, turn + row * 128 + (lane % 8 * 16 ^ row % 2 * 64));
      if (at < p.tokens && (N % Slice == 0 || column < N))
        store_global(static_cast<char*>(p.y) + (static_cast<i64>(at) * N + column) * 2, w[0], w[1], w[2], w[3]);
    }
  }

  __device__ __forceinline__ void store(const float (&d)[Chunk / 8][4], const Added& r, const Tokens& t,
                                        const Places& at, int tile, int chunk) const {
#pragma unroll
    for (int i = 0; i < out_pieces; i += 2) {
      u32 first[2][4], second[2][4];
      finish(first, d, r, t, tile, chunk, i);
      if (i + 1 == out_pieces) {
        store(first, at, chunk, i);
        break;
      }
      finish(second, d, r, t, tile, chunk, i + 1);
      if constexpr (grid_in) {
        store(first, second, tile, chunk, i);
      } else {
        store(first, at, chunk, i);
        store(second, at, chunk, i + 1);
      }
    }
  }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __device__ __forceinline__ void run(u32 weights_ready, int first_tile, int stride) const {
    const int tiles = (p.tokens + 63) / 64;
    Tokens next;
    load(next, min(first_tile, tiles - 1));
    barrier_wait(weights_ready, 0);
#pragma unroll 1
    for (int tile = first_tile; tile < tiles; tile += stride) {
      Tokens t = next;
#pragma unroll
      for (int half = 0; half < 2; ++half) normalise(t.v[half]);
      load(next, min(tile + stride, tiles - 1));
      const Places at = places(tile);
#pragma unroll 1
      for (int chunk = 0; chunk < Slice / Chunk; ++chunk) {
        Added r;
        if constexpr (residual) load_residual(r, at, chunk);
        float d[Chunk / 8][4];
        multiply(d, t, chunk);
        store(d, r, t, at, tile, chunk);
      }
    }
  }
#endif
};

// Blocks: a multiple of the number of slices; neighbouring blocks have the same tokens and different slices.
template <class T, int K, int N, int Slice, int Chunk, int Groups, int Norm, int Flags, int Head>
__global__ void __launch_bounds__(Groups * 128, 1) project(const ProjectParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Tile = Projection<T, K, N, Slice, Chunk, Groups, Norm, Flags, Head>;
  constexpr layout::ProjectPlan plan = Tile::plan;
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 barrier = shared_address(shared), base = barrier + plan.first_slice();
  const int slice = blockIdx.x % plan.slices(), block = blockIdx.x / plan.slices(),
            blocks = gridDim.x / plan.slices();
  if (threadIdx.x == 0) {
    barrier_init(barrier, 1);
    barrier_init_fence();
    barrier_expect(barrier, plan.slice_bytes());
    constexpr int piece = 32768;
    for (int i = 0; i < plan.slice_bytes(); i += piece)
      copy_bulk(base + i, static_cast<const char*>(p.weights) + slice * plan.slice_bytes() + i,
                min(piece, plan.slice_bytes() - i), barrier);
  }
  __syncthreads();
  wait_for_previous_grid();
  let_next_grid_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Tile tile{p, base, slice * Slice, warp, lane / 4, lane % 4};
  tile.run(barrier, block * Groups + warp / 4, blocks * Groups);
#endif
}

}  // namespace warpweave::kernels::long_sequences
