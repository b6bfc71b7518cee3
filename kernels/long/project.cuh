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
// each on its own, with no barrier between them: while one multiplies, others load, centre and store. A warp owns 16
// tokens; lane 4 g + c holds channels 8 c .. 8 c + 7 of every 32 of tokens g and g + 8, which are at once a 16-byte
// access and, W being permuted, its part of the A fragments; outputs lie the same way. The next tile's tokens are
// loaded during the products of this one.
//
// The norm costs few instructions: tokens are centred around their mean as it is in 16 bits, the rows of W have no mean
// (long/projection.h), so that what the rounding left of a token's mean meets zero, and results are divided by the
// deviation, which is computed during the first product. Nothing cancels: squares are of centred values.
//
// Shared memory: a barrier and the slice (long/project_plan.h): 128 -> 384: 99 KB; 256 -> 768 in two slices: 195 KB.
// Limit: bytes. 512 x 512 tokens, 128 -> 384: 67 MB in, 201 MB out, 64 us at 4.2 TB/s; 26 GFLOP, 33 us at 787 TFLOP/s.
#pragma once

#include "common/index.cuh"
#include "long/project_params.h"
#include "long/project_plan.h"
#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/math.cuh"
#include "ptx/matrix.cuh"
#include "ptx/mma.cuh"
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

// Tokens less their means, times `kept`: half in fp16, which would overflow between 65504 and -65504.
template <class T>
struct Centred;
template <>
struct Centred<bf16> {
  static constexpr float kept = 1;
  static __device__ __forceinline__ u32 minus(u32 x, u32 mean) {
    u32 r;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(mean));
    return r;
  }
};
template <>
struct Centred<f16> {
  static constexpr float kept = 0.5f;
  static __device__ __forceinline__ u32 minus(u32 x, u32 mean) {
    constexpr u32 half = 0x38003800u, minus_half = 0xb800b800u;
    u32 r;
    asm("{\n"
        ".reg .b32 m;\n"
        "mul.rn.f16x2 m, %2, %4;\n"
        "fma.rn.f16x2 %0, %1, %3, m;\n"
        "}\n"
        : "=r"(r)
        : "r"(x), "r"(mean), "r"(half), "r"(minus_half));
    return r;
  }
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
  struct Moments {
    float rest[2];     // square of what centring left of the mean
    float divisor[2];  // one over the deviation, for tokens as they are kept
  };

  __device__ __forceinline__ i64 cell(int token) const {
    const u32 columns = static_cast<u32>(p.cells.columns), row = static_cast<u32>(token) / columns;
    return p.cells.first + row * p.cells.pitch + (static_cast<u32>(token) - row * columns);
  }
  // Token of this lane; in the place of what follows the last one, that is computed again.
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

  // Sums by the tensor cores: a lane's 16 bytes are a fragment all of whose rows are the one token.
  __device__ __forceinline__ void centre(Tokens& t, Moments& m) const {
    if constexpr (Norm != layer_norm) return;
    const bool last = K % 32 == 0 || c * 8 < K % 32;  // whether this lane has channels of the last piece
    u32 rounded[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum[2][4] = {};
#pragma unroll
      for (int i = 0; i < pieces; ++i) {
        const u32 a[4] = {t.v[half][4 * i], t.v[half][4 * i + 1], t.v[half][4 * i + 2], t.v[half][4 * i + 3]};
        mma<T>(sum[i % 2], a, Pair<T>::ones, Pair<T>::ones);
      }
      const float mean = ((sum[0][0] + sum[0][2]) + (sum[1][0] + sum[1][2])) * (1.0f / K);
      rounded[half] = Pair<T>::pack(mean, mean);
      const float rest = mean - Pair<T>::first(rounded[half]);
      m.rest[half] = rest * rest;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < groups8; ++i)
        if (i < groups8 - 4 || last) t.v[half][i] = Centred<T>::minus(t.v[half][i], rounded[half]);
  }

  __device__ __forceinline__ void divisors(const Tokens& t, Moments& m) const {
    constexpr float kept = Norm == layer_norm ? Centred<T>::kept : 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float squares[4] = {};
#pragma unroll
      for (int i = 0; i < groups8; ++i) {
        const float a = Pair<T>::first(t.v[half][i]), b = Pair<T>::second(t.v[half][i]);
        squares[i % 2 * 2] += a * a, squares[i % 2 * 2 + 1] += b * b;
      }
      const float all = quad_sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
      float variance = all * (1.0f / (K * kept * kept));
      if constexpr (Norm == layer_norm) variance = fmaxf(variance - m.rest[half], 0.0f);
      m.divisor[half] = rsqrt_approx(variance + p.eps) * (1.0f / kept);
    }
  }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // d [64, Chunk] = tokens times the rows of W from `chunk` on; not waited for.
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
  }

  // The weights have come; after the first time a loop that ends at once, over which the compiler moves nothing, such as
  // work that is to run beside a product to before or behind it.
  __device__ __forceinline__ void wait_for_weights() const { barrier_wait(base - plan.first_slice(), 0); }
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
  __device__ __forceinline__ void finish(u32 (&w)[2][4], const float (&d)[Chunk / 8][4], const Added& r,
                                         const Tokens& t, const Moments& m, int tile, int chunk, int i) const {
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
        if constexpr (Norm != no_norm) v[j] *= m.divisor[half];
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

  // 64 bytes of each of 8 tokens at a time. In a dense y the last token may be written several times, with the same
  // bits, which spares branches; in the grid not, where it may be its own residual.
  __device__ __forceinline__ void store(const float (&d)[Chunk / 8][4], const Added& r, const Tokens& t,
                                        const Moments& m, const Places& at, int tile, int chunk) const {
    char* to[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) to[half] = static_cast<char*>(p.y) + at.byte[half] + chunk * (Chunk * 2);
#pragma unroll
    for (int i = 0; i < out_pieces; ++i) {
      u32 w[2][4];
      finish(w, d, r, t, m, tile, chunk, i);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if ((grid_in || at.present[half]) && has(chunk, i))
          store_global(to[half] + i * 64, w[half][0], w[half][1], w[half][2], w[half][3]);
    }
  }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  template <bool First>
  __device__ __forceinline__ void step(const Tokens& t, Moments& m, const Places& at, int tile, int chunk) const {
    Added r;
    if constexpr (residual) load_residual(r, at, chunk);
    float d[Chunk / 8][4];
    multiply(d, t, chunk);
    if constexpr (First && Norm != no_norm) {
      wait_for_weights();
      divisors(t, m);
    }
    wgmma_wait<0>();
    wgmma_settle(d);
    store(d, r, t, m, at, tile, chunk);
    if constexpr (K % 32 != 0 || N % Slice != 0) wait_for_weights();  // else registers do not quite suffice
  }

  __device__ __forceinline__ void run(int first_tile, int stride) const {
    const int tiles = (p.tokens + 63) / 64;
    // The norm begins with the last tokens, which are in L2 since what made them ended there; what follows begins with
    // the first ones.
    const auto placed = [tiles](int turn) { return grid_in ? max(tiles - 1 - turn, 0) : min(turn, tiles - 1); };
    Tokens next;
    load(next, placed(first_tile));
    wait_for_weights();
#pragma unroll 1
    for (int turn = first_tile; turn < tiles; turn += stride) {
      const int tile = placed(turn);
      Tokens t = next;
      Moments m;
      centre(t, m);
      load(next, placed(turn + stride));
      const Places at = places(tile);
      step<true>(t, m, at, tile, 0);
#pragma unroll 1
      for (int chunk = 1; chunk < Slice / Chunk; ++chunk) step<false>(t, m, at, tile, chunk);
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
  // Tiles left over by the last whole round are spread over the blocks.
  tile.run(warp / 4 * blocks + block, blocks * Groups);
#endif
}

}  // namespace warpweave::kernels::long_sequences
