// A whole layer on sequences of at most 32 tokens, a warp for each, operands in parts (parts.cuh):
//
//   n = norm(x);  q, k, v = n Wqkv^T + b;  o = softmax(q k^T) v for each head;  y = x + o Wout^T + b
//
// `many_sequences` (throughput): persistent blocks, both weights stay in shared memory; a warp takes a sequence at a
// time, all heads in a row, and fetches its next one meanwhile. `few_sequences` (latency): a block takes a sequence, a
// warp a head; eight lanes normalise a token, and tokens and the heads' results meet in shared memory.
// Both sum in the same order, so they give the same bits and may be chosen by the number of sequences.
//
// Softmax first goes without the maximum: where a row's sum of weights leaves the range that keeps its digits, all heads of
// the sequence are done again with it. That looks at the sequence alone.
//
// Shared memory at dim 64, 4 heads of 16: 68 KB of weights in fp32, 35 KB in tf32; then, many: 16 KB a warp, with KEEP 20 KB;
// few: 16 KB (8 in tf32).
// Limit at this size and length 32, a sequence: 992 m16n8k16 products in fp32 (368 in tf32), 4096 exponentials, 16 KB
// read and written.
#pragma once

#include "ptx/grid.cuh"
#include "split/warp_sequence.cuh"

namespace warpweave::kernels::split {

// First element of a token.
__device__ __forceinline__ i64 sequence_element(const ShortParams& p, u32 sequence, int dim) {
  const u32 inner = static_cast<u32>(p.cells.inner);
  return (sequence / inner * p.cells.outer_stride + sequence % inner * p.cells.inner_stride) * dim;
}

// Which tokens may be attended to, one bit each.
template <class L>
__device__ __forceinline__ u32 valid_keys(const ShortParams& p, i64 element, int lane) {
  bool valid = lane < p.length;
  if constexpr (L::MASKED) valid = valid && p.mask[element / L::DIM + lane * p.cells.step] != 0;
  return __ballot_sync(0xffffffffu, valid);
}

// The layer as shared memory has it, from the grid.
template <class L, int THREADS>
__device__ __forceinline__ void copy_layer(u32 shared, const ShortParams& p) {
#pragma unroll 4
  for (int i = threadIdx.x * 16; i < L::WEIGHT_BYTES; i += THREADS * 16)
    copy_async<16>(shared + i, static_cast<const char*>(p.layer) + i);
  copy_commit();
}

// The part of the output projection that makes channels 16 pair ..: in shared memory (InPlace), or (LOADED) in registers.
template <class L, class Rows>
struct OutRows {
  Rows weight;
  float4 factor;

  __device__ __forceinline__ OutRows(const WarpSequence<L>& w, int pair)
      : weight(w.weights + L::OUT, 16 * pair, w.lane),
        factor(load_four(w.weights + L::OUT_FACTOR + (16 * pair + 4 * w.c) * 4)) {
    weight.load_begin(w.weights + L::OUT_START + (16 * pair + 4 * w.c) * 8, 16);
  }
};
template <class L>
using OutInPlace = OutRows<L, typename WarpSequence<L>::template WeightRows<L::DIM, L::INNER / 16>>;
template <class L, bool LOADED>
struct OutOf {
  using Type = OutInPlace<L>;
};
template <class L>
struct OutOf<L, true> {
  using Type = OutRows<L, typename WarpSequence<L>::template LoadedRows<L::DIM, L::INNER / 16>>;
};

// Results of all heads and tiles.
template <class L>
using HeadResults = LoadedOperands<L::PARTS, L::TILES, L::INNER / 16>;

// Where a lane's rows are in the grid: four channels of token 8 row + g are at `first` + row `step` + 16 pair.
template <class L, bool CHECK>
struct LaneRows {
  static constexpr int ROWS = 2 * L::TILES;
  i64 first, step;
  int present;  // rows that there are

  __device__ __forceinline__ LaneRows(const ShortParams& p, i64 element, int lane)
      : first(element + (lane / 4) * p.cells.step * L::DIM + lane % 4 * 4),
        step(8 * p.cells.step * L::DIM),
        present((p.length - lane / 4 + 7) / 8) {}

  __device__ __forceinline__ void load_residual(float4 (&r)[ROWS], const float* x, int pair) const {
    x += first + 16 * pair;
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      r[row] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (L::RESIDUAL && (!CHECK || row < present))
        r[row] = *reinterpret_cast<const float4*>(x + row * step);
    }
  }

  // These channels of y, from the heads' results and the residual r.
  template <class Out>
  __device__ __forceinline__ void finish(float* y, const Out& out, const HeadResults<L>& o, const float4 (&r)[ROWS],
                                         int pair) const {
    y += first + 16 * pair;
    float d[L::TILES][2][4];
    WarpSequence<L>::template project<true, false, L::INNER / 16>(d, o, 0, out.weight);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
      const float* const low = d[row / 2][0] + row % 2 * 2;
      const float* const high = d[row / 2][1] + row % 2 * 2;
      const u32 a = __float_as_uint(__fmaf_rn(low[0], out.factor.x, r[row].x));
      const u32 b = __float_as_uint(__fmaf_rn(low[1], out.factor.y, r[row].y));
      const u32 c = __float_as_uint(__fmaf_rn(high[0], out.factor.z, r[row].z));
      const u32 e = __float_as_uint(__fmaf_rn(high[1], out.factor.w, r[row].w));
      if (!CHECK || row < present) store_global(y + row * step, a, b, c, e);
    }
  }
};

// A head's result of a tile: lanes keep their own values.
template <class L>
__device__ __forceinline__ void store_tile(u32 to, const u32 (&v)[L::HEAD_STEPS][L::PARTS][4], int lane) {
#pragma unroll
  for (int s = 0; s < L::HEAD_STEPS; ++s) {
#pragma unroll
    for (int part = 0; part < L::PARTS; ++part) store_shared(to + (s * L::PARTS + part) * 512 + lane * 16, v[s][part]);
  }
}

// Results of a head for all tiles to shared memory, from `results` on; what it returns is that of WarpSequence::attend.
template <class L, bool CHECK, bool MAX>
__device__ __forceinline__ bool attend_head(const WarpSequence<L>& w, u32 results, int head, u32 valid,
                                            const typename WarpSequence<L>::Scores& begin) {
  constexpr int AT_ONCE = L::SMALL ? L::TILES : 1;  // tiles of q
  u32 q[AT_ONCE][L::HEAD_STEPS][L::PARTS][4], k[L::TILES][L::HEAD_STEPS][L::PARTS][4], v[L::TILES][L::HEAD_STEPS][L::VALUES][4];
  bool fine = true;
  if constexpr (AT_ONCE == L::TILES) w.project_q(q, 0, head);
  w.project_k_v(k, v, head, valid);
#pragma unroll
  for (int t = 0; t < L::TILES; ++t) {
    if constexpr (AT_ONCE < L::TILES) w.project_q(q, t, head);
    u32 o[L::HEAD_STEPS][L::PARTS][4];
    fine = w.template attend<CHECK, MAX>(o, q[t % AT_ONCE], k, v, t, valid, begin) && fine;
    store_tile<L>(results + (t * L::HEADS + head) * L::TILE_BYTES, o, w.lane);
  }
  return fine && (MAX || w.p.score_scale == 1.0f);
}

// A warp's part of many_sequences. KEEP: x stays in shared memory beside the heads' results, which otherwise take its
// place; the residual is then read again from the grid.
template <class L, int WARPS, bool KEEP, bool CHECK>
struct ManySequences {
  static constexpr int ROWS = 2 * L::TILES, PIECES = L::DIM / 16, X_BYTES = ROWS * PIECES * 512;
  static constexpr int BUFFER = KEEP || X_BYTES > L::OUTPUT_BYTES ? X_BYTES : L::OUTPUT_BYTES;
  static constexpr int BYTES = 2 * BUFFER + (KEEP ? L::OUTPUT_BYTES : 0);
  using Warp = WarpSequence<L>;

  const ShortParams& p;
  u32 weights, buffers;
  int lane;

  static __device__ __forceinline__ u32 place(u32 buffer, int row, int piece, int lane) {
    return buffer + (row * PIECES + piece) * 512 + lane * 16;
  }

  // A lane's own channels of its rows; rows that are not there become zeros.
  __device__ __forceinline__ void fetch(u32 sequence, u32 buffer) const {
    if (sequence < p.sequences) {
      const float* x = p.x + sequence_element(p, sequence, L::DIM) + lane % 4 * 4;
#pragma unroll
      for (int row = 0; row < ROWS; ++row) {
        const int token = 8 * row + lane / 4;
        const bool present = !CHECK || token < p.length;
        const float* const from = x + (present ? token : 0) * p.cells.step * L::DIM;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) copy_async<16>(place(buffer, row, i, lane), from + i * 16, present);
      }
    }
    copy_commit();
  }

  template <bool MAX>
  __device__ __forceinline__ bool attend_all(const Warp& w, u32 results, u32 valid, const typename Warp::Scores& begin) const {
    bool fine = true;
#pragma unroll 1
    for (int head = 0; head < L::HEADS; ++head) fine = attend_head<L, CHECK, MAX>(w, results, head, valid, begin) && fine;
    return fine;
  }

  __device__ __forceinline__ void run(u32 sequence, u32 stride) const {
#pragma unroll 1
    for (int turn = 0; sequence < p.sequences; sequence += stride, turn ^= 1) {
      const u32 x = buffers + turn * BUFFER, results = KEEP ? buffers + 2 * BUFFER : x;
      const i64 element = sequence_element(p, sequence, L::DIM);
      copy_wait<0>();
      Warp w(p, weights, lane);
#pragma unroll
      for (int row = 0; row < ROWS; ++row) {
        float v[L::STEPS][4];
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
          const float4 four = load_four(place(x, row, i, lane));
          v[i][0] = four.x, v[i][1] = four.y, v[i][2] = four.z, v[i][3] = four.w;
        }
        w.set_row(row, v);
      }
      const u32 valid = CHECK ? valid_keys<L>(p, element, lane) : 0xffffffffu;
      if constexpr (!KEEP) __syncwarp();  // the heads' results come to where other lanes have read x
      fetch(sequence + stride, buffers + (turn ^ 1) * BUFFER);
      typename Warp::Scores begin = {};
      if constexpr (CHECK && L::FREE) Warp::begin_scores(begin, valid, lane);
      const bool fine = attend_all<!L::FREE>(w, results, valid, begin);
      if (L::FREE && !__all_sync(0xffffffffu, fine)) attend_all<true>(w, results, valid, begin);
      HeadResults<L> o;
      o.load(results + lane * 16);
      const LaneRows<L, CHECK> rows(p, element, lane);
#pragma unroll
      for (int pair = 0; pair < PIECES; ++pair) {
        float4 r[ROWS];
        if constexpr (KEEP && L::RESIDUAL) {
#pragma unroll
          for (int row = 0; row < ROWS; ++row) r[row] = load_four(place(x, row, pair, lane));
        } else {
          rows.load_residual(r, p.x, pair);
        }
        rows.finish(p.y, OutInPlace<L>(w, pair), o, r, pair);
      }
      __syncwarp();  // the next but one is fetched to where other lanes have read
    }
  }
};

template <class L, int WARPS, bool KEEP, bool CHECK>
__device__ __forceinline__ void run_many(const ShortParams& p, u32 shared) {
  using Part = ManySequences<L, WARPS, KEEP, CHECK>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Part part{p, shared, shared + L::WEIGHT_BYTES + warp * Part::BYTES, lane};
  const u32 sequence = blockIdx.x + warp * gridDim.x;  // so that blocks are equally loaded
  part.fetch(sequence, part.buffers);
  // Only the weights are waited for together: a warp begins when its own sequence is there.
  copy_wait<1>();
  __syncthreads();
  let_next_grid_start();
  part.run(sequence, gridDim.x * WARPS);
}

template <class L, int WARPS, bool KEEP>
__global__ void __launch_bounds__(32 * WARPS, 1) many_sequences(const ShortParams p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const u32 shared = shared_address(memory);
  copy_layer<L, 32 * WARPS>(shared, p);
  wait_for_previous_grid();
  if (!L::MASKED && !L::CAUSAL && p.length == L::SLOT)
    run_many<L, WARPS, KEEP, false>(p, shared);
  else
    run_many<L, WARPS, KEEP, true>(p, shared);
}

// The tokens of a sequence, normalised, as A operands of tile and step, a lane's own registers in 16 bytes. Eight lanes
// take tokens g and g + 8 of a tile at a time, whose shares of an operand are the same lane's.
template <class L, int THREADS>
struct BlockTokens {
  static constexpr int BYTES = L::TILES * L::STEPS * L::PARTS * 512;
  static constexpr int PAIRS = L::SLOT / 2, AT_ONCE = THREADS / 8, TURNS = (PAIRS + AT_ONCE - 1) / AT_ONCE;

  const int pair, c, begin;  // of tokens, of the first turn; of the lane's channels
  const float* from[TURNS][2];
  float v[TURNS][2][L::HALF][4] = {};

  __device__ __forceinline__ BlockTokens(const ShortParams& p, i64 element)
      : pair(threadIdx.x / 8), c(threadIdx.x % 4), begin(threadIdx.x / 4 % 2 * L::HALF) {
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int at = pair + turn * AT_ONCE, token = at / 8 * 16 + row * 8 + at % 8;
        from[turn][row] = token < p.length ? p.x + element + token * p.cells.step * L::DIM + 16 * begin + 4 * c : nullptr;
      }
    }
  }

  // Rows that are not there become zeros.
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
#pragma unroll
        for (int i = 0; i < L::HALF; ++i) {
          if (from[turn][row] && begin + i < L::STEPS) {
            const float4 four = *reinterpret_cast<const float4*>(from[turn][row] + 16 * i);
            float(&to)[4] = v[turn][row][i];
            to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
          }
        }
      }
    }
  }

  __device__ __forceinline__ void normalise(u32 tokens, float eps) {
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
#pragma unroll
      for (int row = 0; row < 2; ++row) normalise_lane<L, 2>(v[turn][row], eps);
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
      const int at = pair + turn * AT_ONCE;
      if (PAIRS % AT_ONCE != 0 && at >= PAIRS) break;
#pragma unroll
      for (int i = 0; i < L::HALF; ++i) {
        if (begin + i >= L::STEPS) break;
        u32 n[L::PARTS][4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float* const two = v[turn][r % 2][i] + r / 2 * 2;
          const Parts<L::PARTS> parts(two[0], two[1]);
#pragma unroll
          for (int part = 0; part < L::PARTS; ++part) n[part][r] = parts.part[part];
        }
        const u32 to = tokens + (at / 8 * L::STEPS + begin + i) * L::PARTS * 512 + (at % 8 * 4 + c) * 16;
#pragma unroll
        for (int part = 0; part < L::PARTS; ++part) store_shared(to + part * 512, n[part]);
      }
    }
  }
};

template <class L>
__global__ void __launch_bounds__(32 * L::HEADS, 2) few_sequences(const ShortParams p) {
  using Block = BlockTokens<L, 32 * L::HEADS>;
  using Warp = WarpSequence<L>;
  extern __shared__ __align__(128) unsigned char memory[];
  const int lane = threadIdx.x % 32, head = threadIdx.x / 32;
  const u32 shared = shared_address(memory), tokens = shared + L::WEIGHT_BYTES, results = tokens + Block::BYTES;
  const i64 element = sequence_element(p, blockIdx.x, L::DIM);
#if __CUDA_ARCH__ >= 900
  const u32 arrived = results + L::OUTPUT_BYTES;
  if (threadIdx.x == 0) {
    barrier_init(arrived, 1);
    barrier_init_fence();
    barrier_expect(arrived, L::WEIGHT_BYTES);
    copy_bulk(shared, p.layer, L::WEIGHT_BYTES, arrived);
  }
#else
  copy_layer<L, 32 * L::HEADS>(shared, p);
#endif
  Block block(p, element);
  const LaneRows<L, true> rows(p, element, lane);
  wait_for_previous_grid();
  let_next_grid_start();
  block.load();
  block.normalise(tokens, p.eps);
  Warp w(p, shared, lane);
  const u32 valid = valid_keys<L>(p, element, lane);
  typename Warp::Scores begin = {};
  if constexpr (L::FREE) Warp::begin_scores(begin, valid, lane);
#if __CUDA_ARCH__ < 900
  copy_wait<0>();
#endif
  __syncthreads();
#if __CUDA_ARCH__ >= 900
  barrier_wait(arrived, 0);
#endif
  w.n.load(tokens + lane * 16);
  const bool fine = attend_head<L, true, !L::FREE>(w, results, head, valid, begin);
  // The first channels that this warp makes: all but the heads' results is on its way while the block gathers.
  const int own = min(head, L::DIM / 16 - 1);
  float4 r[2 * L::TILES];
  rows.load_residual(r, p.x, own);
  const typename OutOf<L, L::SMALL>::Type out(w, own);
  if (__syncthreads_or(L::FREE && !fine)) {
    attend_head<L, true, true>(w, results, head, valid, begin);
    __syncthreads();
  }
  if (head >= L::DIM / 16) return;
  HeadResults<L> o;
  o.load(results + lane * 16);
  // In place: all of the sequence was read before the barriers above, and these channels are this warp's own.
  rows.finish(p.y, out, o, r, head);
#pragma unroll 1
  for (int pair = head + L::HEADS; pair < L::DIM / 16; pair += L::HEADS) {
    rows.load_residual(r, p.x, pair);
    rows.finish(p.y, OutInPlace<L>(w, pair), o, r, pair);
  }
}

}  // namespace warpweave::kernels::split
