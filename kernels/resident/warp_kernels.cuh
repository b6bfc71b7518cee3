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
// Shared memory of a block: the packed weights from the first matrix on (34 KB at dim 64, 4 heads of 16); then,
// many: of each warp two sequences (2 slot dim 2 bytes) and its heads' outputs (slot heads head_width 2 bytes);
// few: one sequence's heads' outputs.
//
// Limit at dim 64, 4 heads of 16, length 32, a sequence: 1.31 MFLOP (376 m16n8k16 products with the sums of
// weights and of the norm), 4096 exponentials, 8 KB read and written. On a H200 the layer's products alone take
// 17.6 us for 8192 sequences.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "resident/products.cuh"
#include "resident/specification.cuh"
#include "resident/warp_sequence.cuh"

namespace warpweave {

// The first cell of a sequence, without a division.
__device__ __forceinline__ i64 first_cell_of(const ResidentArguments& a, u32 sequence) {
  const u32 sample = a.by_sample.divide(sequence);
  return sample * a.sample_cells + (sequence - sample * a.per_sample) * a.sequence_cells;
}

template <class S>
__device__ __forceinline__ void copy_weights(u32 shared, const void* weights, int threads) {
  for (int i = S::weights.qkv() + threadIdx.x * 16; i < S::weights.warp_end(S::bias_parts); i += threads * 16)
    copy_async<16>(shared + i, static_cast<const char*>(weights) + i);
  copy_commit();
}

template <class S>
__device__ __forceinline__ void load_out_bias(float (&bias)[4], u32 weights, int tile, int c) {
  u32 b[4] = {0, 0, 0, 0};
  if constexpr (S::out_bias) load_shared(b, weights + S::weights.out_tile_bias(tile * 8 + 2 * c));
#pragma unroll
  for (int i = 0; i < 4; ++i) bias[i] = __uint_as_float(b[i]);
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
      const char* x = static_cast<const char*>(args.x) + first_byte(first_cell_of(args, sequence));
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

  // y += outputs of a head times its part of Wout; the first head starts from the bias.
  template <bool First>
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
        for (int j = 0; j < 2; ++j) {
          float bias[4];
          if (First && s == 0) load_out_bias<S>(bias, weights, 2 * i + j, c);
#pragma unroll
          for (int t = 0; t < S::tiles; ++t) {
            if (First && s == 0)
              mma_from<T>(y[t][2 * i + j], o[t][s], b[2 * j], b[2 * j + 1], bias);
            else
              mma<T>(y[t][2 * i + j], o[t][s], b[2 * j], b[2 * j + 1]);
          }
        }
      }
  }

  __device__ __forceinline__ u32 output(int head, int tile, int step) const {
    return buffers + 2 * Buffer::bytes + ((head * S::tiles + tile) * hs + step) * 512 + lane * 16;
  }
  __device__ __forceinline__ void load_outputs(u32 (&o)[S::tiles][hs][4], int head) const {
#pragma unroll
    for (int t = 0; t < S::tiles; ++t)
#pragma unroll
      for (int k = 0; k < hs; ++k) load_shared(o[t][k], output(head, t, k));
  }
  __device__ __forceinline__ u32 bias(int head) const { return weights + S::weights.head_tile_bias(head, 0, 0); }
  __device__ __forceinline__ u32 qkv(int head) const {
    return weights + S::weights.qkv() + head * S::weights.head_qkv_bytes();
  }

  // All heads, their outputs into shared memory, a lane's own share: accumulating the output head by head would
  // hold its registers all the while. Some heads are unrolled for the scheduler, no more than the instruction
  // cache holds. Max and the result are those of WarpSequence::attend.
  template <bool Max>
  __device__ __forceinline__ bool attend_all(const WarpSequence<S>& tokens, u32 valid) const {
    bool fine = true;
#pragma unroll(Max ? 1 : 4 / hs)
    for (int h = 0; h < S::heads; h += at_once) {
      u32 o[at_once][S::tiles][hs][4];
      fine = tokens.template attend<at_once, Check, Max>(o, bias(h), qkv(h), args, valid) && fine;
#pragma unroll
      for (int i = 0; i < at_once; ++i)
#pragma unroll
        for (int t = 0; t < S::tiles; ++t)
#pragma unroll
          for (int k = 0; k < hs; ++k) store_shared(output(h + i, t, k), o[i][t][k]);
    }
    return fine;
  }

  __device__ __forceinline__ void run(u32 sequence, u32 stride) const {
#pragma unroll 1
    for (int turn = 0; sequence < args.sequences; sequence += stride, turn ^= 1) {
      const u32 buffer = buffers + turn * Buffer::bytes;
      copy_wait<0>();
      const u32 valid = Check ? valid_keys<S>(args, first_cell_of(args, sequence), lane) : 0xffffffffu;
      WarpSequence<S> tokens;
      tokens.lane = lane, tokens.g = g, tokens.c = c;
#pragma unroll
      for (int row = 0; row < Buffer::rows; ++row) {
        u32 v[S::groups];
        for_each_piece<S::dim>(c, typename Buffer::Read{v, buffer, row, lane});
        tokens.set_row(row / 2, row % 2, v);
      }
      normalise_tiles<T, S::dim, S::norm>(tokens.n, args.eps, lane);
      fetch(sequence + stride, buffers + (turn ^ 1) * Buffer::bytes);

      const bool fine = attend_all<S::mask>(tokens, valid);
      if (!S::mask && !__all_sync(0xffffffffu, fine)) attend_all<true>(tokens, valid);
      float y[S::tiles][2 * S::out_pairs][4];
      const i64 first = first_byte(first_cell_of(args, sequence));
      u32 o[S::tiles][hs][4];
      load_outputs(o, 0);
      add_out<true>(y, o, 0);
#pragma unroll(S::heads <= 4 ? S::heads : 1)
      for (int h = 1; h < S::heads; ++h) {
        load_outputs(o, h);
        add_out<false>(y, o, h);
      }
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
        if (!Check || 8 * row + g < args.length)
          store_row<S::dim>(static_cast<char*>(args.y) + first + row * row_step, v, c);
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
                  weights + S::weights.warp_end(S::bias_parts) + warp * Part::bytes,
                  lane,
                  lane / 4,
                  lane % 4,
                  8 * args.token_cells * (S::dim * 2)};
  const u32 sequence = blockIdx.x + warp * gridDim.x;  // so that blocks are equally loaded
  part.fetch(sequence, part.buffers);
  // Only the weights are waited for together: warps begin when their own sequence is there, one after another,
  // and so are in different parts of the work from then on.
  copy_wait<1>();
  __syncthreads();
  let_next_grid_start();
  part.run(sequence, gridDim.x * S::warps);
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    resident_many(const __grid_constant__ ResidentArguments args) {
  extern __shared__ __align__(128) char memory[];
  const u32 weights = shared_address(memory) - S::weights.qkv();
  copy_weights<S>(weights, args.weights, S::threads);
  wait_for_previous_grid();
  if (!S::mask && !S::causal && args.length == S::slot)
    run_many<S, false>(args, weights);
  else
    run_many<S, true>(args, weights);
}

// The heads of a warp of `resident_few`: their outputs into shared memory from `heads` on. Max and the result are
// those of WarpSequence::attend.
template <class S, bool Max>
__device__ __forceinline__ bool few_heads(const WarpSequence<S>& tokens, u32 weights, u32 heads,
                                          const ResidentArguments& args, u32 valid, int warp) {
  bool fine = true;
  for (int h = warp; h < S::heads; h += S::warps) {
    u32 o[1][S::tiles][S::head_steps][4];
    const bool good = tokens.template attend<1, true, Max>(
        o, weights + S::weights.head_tile_bias(h, 0, 0),
        weights + S::weights.qkv() + h * S::weights.head_qkv_bytes(), args, valid);
    fine = fine && good;
#pragma unroll
    for (int t = 0; t < S::tiles; ++t)
#pragma unroll
      for (int s = 0; s < S::head_steps; ++s)
        store_shared(heads + ((h * S::tiles + t) * S::head_steps + s) * 512 + tokens.lane * 16, o[0][t][s]);
  }
  return fine;
}

// Blocks of `few` on a multiprocessor at least: 16 warps, so 128 registers, where they suffice without spills.
template <class S>
constexpr int few_blocks = S::tiles * S::dim_width <= 128 && S::head_width <= 16 && !(S::mask && S::rope)
                               ? 16 / S::warps
                               : 1;

template <class S>
__global__ void __launch_bounds__(S::threads, few_blocks<S>)
    resident_few(const __grid_constant__ ResidentArguments args) {
  extern __shared__ __align__(128) char memory[];
  using T = typename S::T;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const u32 weights = shared_address(memory) - S::weights.qkv(), heads = weights + S::weights.warp_end(S::bias_parts);
  const i64 cell = first_cell_of(args, blockIdx.x);
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
    tokens.set_row(row / 2, row % 2, v[row]);
  }
  normalise_tiles<T, S::dim, S::norm>(tokens.n, args.eps, lane);
  copy_wait<0>();
  __syncthreads();
  let_next_grid_start();

  const bool fine = few_heads<S, S::mask>(tokens, weights, heads, args, valid, warp);
  if (__syncthreads_or(!S::mask && !fine)) {  // all heads again, as in `many`
    few_heads<S, true>(tokens, weights, heads, args, valid, warp);
    __syncthreads();
  }

  for (int pair = warp; pair < S::out_pairs; pair += S::warps) {
    float y[S::tiles][2][4];
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
    for (int i = 0; i < 2; ++i) {
      load_out_bias<S>(y[0][i], weights, 2 * pair + i, c);
#pragma unroll
      for (int t = 1; t < S::tiles; ++t)
#pragma unroll
        for (int j = 0; j < 4; ++j) y[t][i][j] = y[0][i][j];
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
