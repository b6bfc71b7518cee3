// Resident kernels for short sequences: a warp owns a whole sequence of at most 32 tokens.
//
//   N = norm(X);  Q, K, V = N Wqkv^T + b;  O_h = softmax(Q_h K_h^T) V_h;  Y = X + concat(O) Wout^T + b
//
// X [length, dim] is a row or a column of the grid. `resident_many` (throughput): persistent blocks of
// `warps` warps, each taking every so-many-th sequence, all heads in a row; the next sequence is copied to
// shared memory meanwhile. `resident_few` (latency): a block takes one sequence, warp h takes head h (and h
// + warps, ..), the heads' outputs meet in shared memory and each warp makes some of the output's channels.
// Both sum every output in the same order, so they give the same bits and may be chosen by the number of
// sequences.
//
// Shared memory of a block: the packed weights (33.9 KB at dim 64, 4 heads of 16); then, many: two sequences
// a warp (2 slot dim 2 bytes each); few: slot heads head_width 2 bytes of heads' outputs.
//
// Limit at dim 64, 4 heads of 16, length 32, a sequence: 1.31 MFLOP (352 m16n8k16 products with the row
// sums), 4096 exponentials, 8 KB read and written. On a H200 the products alone take 17.6 us for 8192
// sequences.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "resident/specification.cuh"
#include "resident/warp_sequence.cuh"

namespace warpweave {

template <class S>
__device__ __forceinline__ void copy_weights(u32 shared, const void* weights, int threads) {
  for (int i = threadIdx.x * 16; i < S::weights.bytes(); i += threads * 16)
    copy_async<16>(shared + i, static_cast<const char*>(weights) + i);
  copy_commit();
}

template <class S>
__device__ __forceinline__ void start_out(float (&d)[4], u32 weights, int tile, int c) {
  u32 b[2] = {0, 0};
  if constexpr (S::out_bias) load_shared(b, weights + S::weights.out_bias() + (tile * 8 + 2 * c) * 4);
  d[0] = d[2] = __uint_as_float(b[0]);
  d[1] = d[3] = __uint_as_float(b[1]);
}

// A lane's copies of its own share of a sequence, private to the lane.
template <class S>
struct SequenceBuffer {
  static constexpr int rows = 2 * S::tiles;
  static constexpr int bytes = rows * 8 * S::dim * 2;

  template <int Bytes>
  static __device__ __forceinline__ u32 place(u32 base, int row, int group, int lane) {
    constexpr int full = S::dim / 32 * 4;
    if (Bytes == 16) return base + (row * (S::dim / 32) + group / 4) * 512 + lane * 16;
    const u32 tail8 = base + rows * (S::dim / 32) * 512;
    if (Bytes == 8) return tail8 + row * 256 + lane * 8;
    const u32 tail4 = tail8 + (S::dim % 32 >= 16 ? rows * 256 : 0);
    (void)full;
    return tail4 + row * 128 + lane * 4;
  }

  struct Fill {
    u32 base;
    int row, lane;
    const char* source;
    bool valid;
    template <int Bytes>
    __device__ __forceinline__ void operator()(int offset, int group) const {
      copy_async<Bytes>(place<Bytes>(base, row, group, lane), source + offset, valid);
    }
  };

  struct Read {
    u32 (&v)[S::groups];
    u32 base;
    int row, lane;
    template <int Bytes>
    __device__ __forceinline__ void operator()(int, int group) const {
      const u32 p = place<Bytes>(base, row, group, lane);
      if constexpr (Bytes == 16) {
        u32 w[4];
        load_shared(w, p);
#pragma unroll
        for (int i = 0; i < 4; ++i) v[group + i] = w[i];
      } else if constexpr (Bytes == 8) {
        u32 w[2];
        load_shared(w, p);
        v[group] = w[0], v[group + 1] = w[1];
      } else {
        v[group] = load_shared(p);
      }
    }
  };
};

template <class S>
__device__ __forceinline__ int row_token(int row, int g) {
  return row / 2 * 16 + row % 2 * 8 + g;
}

// One warp's part of `resident_many`, from the first sequence on.
template <class S, bool Check>
struct ManySequences {
  using T = typename S::T;
  using Buffer = SequenceBuffer<S>;
  static constexpr int hs = S::head_steps,
                       at_once = S::stages > 0 && S::heads % S::stages == 0 ? S::stages : 1;

  // Of a warp: two sequences, then its heads' outputs.
  static constexpr int bytes = 2 * Buffer::bytes + S::heads * S::tiles * hs * 512;

  const ResidentArguments& args;
  u32 weights, buffers;
  int lane, g, c;
  i64 row_step;  // bytes from a row to the one 8 tokens on

  __device__ __forceinline__ i64 first_byte(i64 cell) const {
    return (cell + g * args.token_cells) * (S::dim * 2);
  }

  __device__ __forceinline__ void fetch(u32 sequence, u32 buffer) const {
    if (sequence < args.sequences) {
      const char* x = static_cast<const char*>(args.x) + first_byte(first_cell(args, sequence));
#pragma unroll
      for (int row = 0; row < Buffer::rows; ++row) {
        const bool valid = !Check || 8 * row + g < args.length;
        for_each_piece<S::dim>(
            c, typename Buffer::Fill{buffer, row, lane,
                                     valid ? x + row * row_step : static_cast<const char*>(args.x), valid});
      }
    }
    copy_commit();
  }

  __device__ __forceinline__ void add_out(float (&y)[S::tiles][2 * S::out_pairs][4],
                                          const u32 (&o)[S::tiles][hs][4], int head) const {
    const u32 out = weights + S::weights.out() + head * S::weights.head_out_bytes();
#pragma unroll
    for (int s = 0; s < hs; ++s)
#pragma unroll
      for (int i = 0; i < S::out_pairs; ++i) {
        u32 b[4];
        load_matrices(b, out + (s * (S::dim_width / 8) + 2 * i) * layout::core_pair_bytes + lane * 16);
#pragma unroll
        for (int t = 0; t < S::tiles; ++t) {
          mma<T>(y[t][2 * i], o[t][s], b[0], b[1]);
          mma<T>(y[t][2 * i + 1], o[t][s], b[2], b[3]);
        }
      }
  }

  __device__ __forceinline__ void start_y(float (&y)[S::tiles][2 * S::out_pairs][4]) const {
#pragma unroll
    for (int i = 0; i < 2 * S::out_pairs; ++i)
#pragma unroll
      for (int t = 0; t < S::tiles; ++t) start_out<S>(y[t][i], weights, i, c);
  }

  __device__ __forceinline__ u32 output(int head, int tile, int step) const {
    return buffers + 2 * Buffer::bytes + ((head * S::tiles + tile) * hs + step) * 512 + lane * 16;
  }
  __device__ __forceinline__ u32 bias(int head) const { return weights + head * 3 * S::head_width * 4; }
  __device__ __forceinline__ u32 qkv(int head) const {
    return weights + S::weights.qkv() + head * S::weights.head_qkv_bytes();
  }

  __device__ __forceinline__ void run(u32 sequence, u32 stride) const {
#pragma unroll 1
    for (int turn = 0; sequence < args.sequences; sequence += stride, turn ^= 1) {
      const u32 buffer = buffers + turn * Buffer::bytes;
      copy_wait<0>();
      const u32 valid = Check ? valid_keys<S>(args, first_cell(args, sequence), lane) : 0xffffffffu;
      WarpSequence<S> tokens;
      tokens.lane = lane, tokens.g = g, tokens.c = c;
#pragma unroll
      for (int row = 0; row < Buffer::rows; ++row) {
        u32 v[S::groups];
        for_each_piece<S::dim>(c, typename Buffer::Read{v, buffer, row, lane});
        normalise_row<T, S::dim, S::norm>(v, args.eps);
        tokens.set_row(row / 2, row % 2, v);
      }
      fetch(sequence + stride, buffers + (turn ^ 1) * Buffer::bytes);

      // Heads' outputs wait in shared memory, a lane's own share: accumulating the output head by head would
      // hold its registers all the while.
#pragma unroll 1
      for (int h = 0; h < S::heads; h += at_once) {
        u32 o[at_once][S::tiles][hs][4];
        tokens.template attend<at_once, Check>(o, bias(h), qkv(h), args, valid);
#pragma unroll
        for (int i = 0; i < at_once; ++i)
#pragma unroll
          for (int t = 0; t < S::tiles; ++t)
#pragma unroll
            for (int k = 0; k < hs; ++k) store_shared(output(h + i, t, k), o[i][t][k]);
      }
      float y[S::tiles][2 * S::out_pairs][4];
      start_y(y);
#pragma unroll(S::heads <= 4 ? S::heads : 1)
      for (int h = 0; h < S::heads; ++h) {
        u32 o[S::tiles][hs][4];
#pragma unroll
        for (int t = 0; t < S::tiles; ++t)
#pragma unroll
          for (int k = 0; k < hs; ++k) load_shared(o[t][k], output(h, t, k));
        add_out(y, o, h);
      }
      char* out = static_cast<char*>(args.y) + first_byte(first_cell(args, sequence));
#pragma unroll
      for (int row = 0; row < Buffer::rows; ++row) {
        u32 v[S::groups];
        if constexpr (S::residual) for_each_piece<S::dim>(c, typename Buffer::Read{v, buffer, row, lane});
#pragma unroll
        for (int i = 0; i < S::groups; ++i) {
          float a = y[row / 2][i][row % 2 * 2], b = y[row / 2][i][row % 2 * 2 + 1];
          if constexpr (S::residual) a += Pair<T>::first(v[i]), b += Pair<T>::second(v[i]);
          v[i] = Pair<T>::pack(a, b);
        }
        if (!Check || 8 * row + g < args.length) store_row<S::dim>(out + row * row_step, v, c);
      }
    }
  }
};

template <class S, bool Check>
__device__ __forceinline__ void run_many(const ResidentArguments& args, u32 weights) {
  using Part = ManySequences<S, Check>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Part part{args,
                  weights,
                  weights + S::weights.bytes() + warp * Part::bytes,
                  lane,
                  lane / 4,
                  lane % 4,
                  8 * args.token_cells * (S::dim * 2)};
  const u32 sequence = blockIdx.x + warp * gridDim.x;  // so that blocks are equally loaded
  part.fetch(sequence, part.buffers);
  copy_wait<0>();
  let_next_grid_start();
  __syncthreads();
  part.run(sequence, gridDim.x * S::warps);
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    resident_many(const __grid_constant__ ResidentArguments args) {
  extern __shared__ __align__(128) char memory[];
  const u32 weights = shared_address(memory);
  copy_weights<S>(weights, args.weights, S::threads);
  wait_for_previous_grid();
  if (!S::mask && !S::causal && args.length == S::slot)
    run_many<S, false>(args, weights);
  else
    run_many<S, true>(args, weights);
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    resident_few(const __grid_constant__ ResidentArguments args) {
  extern __shared__ __align__(128) char memory[];
  using T = typename S::T;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const u32 weights = shared_address(memory), heads = weights + S::weights.bytes();
  const i64 cell = first_cell(args, blockIdx.x);
  const char* x = static_cast<const char*>(args.x);

  copy_weights<S>(weights, args.weights, S::warps * 32);
  wait_for_previous_grid();
  WarpSequence<S> tokens;
  tokens.lane = lane, tokens.g = g, tokens.c = c;
  u32 v[2 * S::tiles][S::groups];
#pragma unroll
  for (int row = 0; row < 2 * S::tiles; ++row) {
    const int token = row_token<S>(row, g);
    load_row<S::dim>(v[row], x + (cell + token * args.token_cells) * (S::dim * 2), token < args.length, c);
  }
  const u32 valid = valid_keys<S>(args, cell, lane);
#pragma unroll
  for (int row = 0; row < 2 * S::tiles; ++row) {
    normalise_row<T, S::dim, S::norm>(v[row], args.eps);
    tokens.set_row(row / 2, row % 2, v[row]);
  }
  copy_wait<0>();
  __syncthreads();
  let_next_grid_start();

  for (int h = warp; h < S::heads; h += S::warps) {
    u32 o[1][S::tiles][S::head_steps][4];
    tokens.template attend<1, true>(o, weights + h * 3 * S::head_width * 4,
                                    weights + S::weights.qkv() + h * S::weights.head_qkv_bytes(), args,
                                    valid);
#pragma unroll
    for (int t = 0; t < S::tiles; ++t)
#pragma unroll
      for (int s = 0; s < S::head_steps; ++s)
        store_shared(heads + ((h * S::tiles + t) * S::head_steps + s) * 512 + lane * 16, o[0][t][s]);
  }
  // The residual of the first pair that this warp makes is on its way while the block gathers.
  __syncthreads();

  for (int pair = warp; pair < S::out_pairs; pair += S::warps) {
    float y[S::tiles][2][4];
#pragma unroll
    for (int t = 0; t < S::tiles; ++t)
#pragma unroll
      for (int i = 0; i < 2; ++i) start_out<S>(y[t][i], weights, 2 * pair + i, c);
    // The two groups of a pair lie side by side in a lane's share of the row, except for a last group of 8.
    constexpr int full = S::dim / 32 * 4;
    const int group = 2 * pair;
    const bool wide = group + 1 < S::groups;
    const int offset = group < full ? group / 4 * 64 + c * 16 + group % 4 * 4
                       : wide       ? full * 16 + c * 8
                                    : group * 16 + c * 4;
    u32 r[2 * S::tiles][2] = {};
#pragma unroll
    for (int row = 0; row < 2 * S::tiles; ++row) {
      const int token = row_token<S>(row, g);
      if (S::residual && token < args.length) {
        const char* p = x + (cell + token * args.token_cells) * (S::dim * 2) + offset;
        if (wide)
          load_global(r[row], p);
        else
          r[row][0] = load_global(p);
      }
    }
#pragma unroll
    for (int h = 0; h < S::heads; ++h)
#pragma unroll
      for (int s = 0; s < S::head_steps; ++s) {
        u32 b[4];
        load_matrices(b, weights + S::weights.out() + h * S::weights.head_out_bytes() +
                             (s * (S::dim_width / 8) + 2 * pair) * layout::core_pair_bytes + lane * 16);
#pragma unroll
        for (int t = 0; t < S::tiles; ++t) {
          u32 o[4];
          load_shared(o, heads + ((h * S::tiles + t) * S::head_steps + s) * 512 + lane * 16);
          mma<T>(y[t][0], o, b[0], b[1]);
          mma<T>(y[t][1], o, b[2], b[3]);
        }
      }
      // In place: every warp has read the whole sequence before the barrier above, and the residual is this
      // warp's own.
#pragma unroll
    for (int row = 0; row < 2 * S::tiles; ++row) {
      const int token = row_token<S>(row, g);
      u32 w[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float a = y[row / 2][i][row % 2 * 2], b = y[row / 2][i][row % 2 * 2 + 1];
        if constexpr (S::residual) a += Pair<T>::first(r[row][i]), b += Pair<T>::second(r[row][i]);
        w[i] = Pair<T>::pack(a, b);
      }
      if (token < args.length) {
        char* p = static_cast<char*>(args.y) + (cell + token * args.token_cells) * (S::dim * 2) + offset;
        if (wide)
          store_global(p, w[0], w[1]);
        else
          store_global(p, w[0]);
      }
    }
  }
}

}  // namespace warpweave
