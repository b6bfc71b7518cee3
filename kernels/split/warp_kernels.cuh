// A whole layer on sequences of at most 32 tokens, a warp for each, operands in parts (parts.cuh):
//
//   n = norm(x);  q, k, v = n Wqkv^T + b;  o = softmax(q k^T) v for each head;  y = x + o Wout^T + b
//
// `many_sequences` (throughput): persistent blocks, both weights stay in shared memory; a warp takes a sequence at a
// time, all heads in a row, and fetches its next one meanwhile. `few_sequences` (latency): a block takes a sequence, a
// warp 16 tokens of one head; k and v, then the heads' results meet in shared memory.
// Both sum in the same order, so they give the same bits and may be chosen by the number of sequences.
//
// Shared memory at dim 64, 4 heads of 16: 66 KB of weights; then, many: BUFFERS x 8 KB a warp; few: 24 KB (12 in tf32).
// Limit at this size and length 32, a sequence: 960 m16n8k16 products in fp32 (576 in tf32), 4096 exponentials, 16 KB
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

// Channels 16 pair .. of y for the warp's tokens, from the heads' results.
template <class L, int OWN>
__device__ __forceinline__ void finish_channels(const WarpSequence<L, OWN>& w, const u32 (&o)[OWN][L::INNER / 16][L::PARTS][4],
                                                int pair, i64 element) {
  const ShortParams& p = w.p;
  float2 r[OWN][2][2] = {};
#pragma unroll
  for (int t = 0; t < OWN; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = w.first + 16 * t + 8 * half + w.g;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (L::RESIDUAL && token < p.length)
          r[t][half][i] = *reinterpret_cast<const float2*>(p.x + element + token * p.cells.step * L::DIM + 16 * pair +
                                                           8 * i + 2 * w.c);
      }
    }
  }
  float d[OWN][2][4];
  w.template project<L::DIM, L::OUT_DEPTH>(d, o, w.weights + L::OUT, 16 * pair);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int column = 16 * pair + 8 * i + 2 * w.c;
    const float2 factor = load_pair(w.weights + L::OUT_FACTOR + column * 4);
    const float2 bias = load_pair(w.weights + L::OUT_BIAS + column * 4);
#pragma unroll
    for (int t = 0; t < OWN; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = w.first + 16 * t + 8 * half + w.g;
        const float2 y = {r[t][half][i].x + __fmaf_rn(d[t][i][2 * half], factor.x, bias.x),
                          r[t][half][i].y + __fmaf_rn(d[t][i][2 * half + 1], factor.y, bias.y)};
        if (token < p.length)
          *reinterpret_cast<float2*>(p.y + element + token * p.cells.step * L::DIM + column) = y;
      }
    }
  }
}

// Operands of a tile and a head: lanes keep their own values.
template <class L>
__device__ __forceinline__ void store_tile(u32 to, const u32 (&v)[L::HEAD_STEPS][L::PARTS][4], int lane) {
#pragma unroll
  for (int s = 0; s < L::HEAD_STEPS; ++s) {
#pragma unroll
    for (int part = 0; part < L::PARTS; ++part) store_shared(to + (s * L::PARTS + part) * 512 + lane * 16, v[s][part]);
  }
}
template <class L>
__device__ __forceinline__ void load_tile(u32 (&v)[L::HEAD_STEPS][L::PARTS][4], u32 from, int lane) {
#pragma unroll
  for (int s = 0; s < L::HEAD_STEPS; ++s) {
#pragma unroll
    for (int part = 0; part < L::PARTS; ++part) load_shared(v[s][part], from + (s * L::PARTS + part) * 512 + lane * 16);
  }
}
// Of all heads, one behind the other.
template <class L>
__device__ __forceinline__ void load_heads(u32 (&v)[L::INNER / 16][L::PARTS][4], u32 from, int lane) {
#pragma unroll
  for (int k = 0; k < L::INNER / 16; ++k) {
#pragma unroll
    for (int part = 0; part < L::PARTS; ++part) load_shared(v[k][part], from + (k * L::PARTS + part) * 512 + lane * 16);
  }
}

// A warp's part of many_sequences.
template <class L, int WARPS, int BUFFERS, bool CHECK>
struct ManySequences {
  static constexpr int ROWS = 2 * L::TILES, BUFFER = ROWS * L::DIM * 32;  // bytes of a sequence
  static constexpr int ROOM = BUFFER > L::OUTPUT_BYTES ? BUFFER : L::OUTPUT_BYTES;

  const ShortParams& p;
  u32 weights, buffers;
  int lane;

  // A lane's own channels of its rows, 8 bytes at a time; rows that are not there become zeros.
  __device__ __forceinline__ void fetch(u32 sequence, u32 buffer) const {
    if (sequence < p.sequences) {
      const float* x = p.x + sequence_element(p, sequence, L::DIM) + lane % 4 * 2;
#pragma unroll
      for (int row = 0; row < ROWS; ++row) {
        const int token = 8 * row + lane / 4;
        const bool present = !CHECK || token < p.length;
        const float* const from = x + (present ? token : 0) * p.cells.step * L::DIM;
#pragma unroll
        for (int i = 0; i < L::DIM / 8; ++i)
          copy_async<8>(buffer + (row * (L::DIM / 8) + i) * 256 + lane * 8, from + i * 8, present);
      }
    }
    copy_commit();
  }

  __device__ __forceinline__ void run(u32 sequence, u32 stride) const {
#pragma unroll 1
    for (int turn = 0; sequence < p.sequences; sequence += stride, turn ^= 1) {
      const u32 own = buffers + (BUFFERS == 2 ? turn * ROOM : 0), other = buffers + (BUFFERS == 2 ? (turn ^ 1) * ROOM : 0);
      const i64 element = sequence_element(p, sequence, L::DIM);
      copy_wait<0>();
      WarpSequence<L, L::TILES> w(p, weights, 0, lane);
#pragma unroll
      for (int row = 0; row < ROWS; ++row) {
        float v[L::STEPS][4];
#pragma unroll
        for (int i = 0; i < L::DIM / 8; ++i) {
          const float2 pair = load_pair(own + (row * (L::DIM / 8) + i) * 256 + lane * 8);
          v[i / 2][i % 2 * 2] = pair.x, v[i / 2][i % 2 * 2 + 1] = pair.y;
        }
        w.set_row(row, v);
      }
      const u32 valid = CHECK ? valid_keys<L>(p, element, lane) : 0xffffffffu;
      __syncwarp();  // the heads' results come to where other lanes have read x
      if constexpr (BUFFERS == 2) fetch(sequence + stride, other);
#pragma unroll 1
      for (int head = 0; head < L::HEADS; ++head) {
        u32 q[L::TILES][L::HEAD_STEPS][L::PARTS][4], k[L::TILES][L::HEAD_STEPS][L::PARTS][4],
            v[L::TILES][L::HEAD_STEPS][L::PARTS][4];
        w.project_head(q, k, v, head, valid);
#pragma unroll
        for (int t = 0; t < L::TILES; ++t) {
          u32 o[L::HEAD_STEPS][L::PARTS][4];
          w.template attend<CHECK>(o, q[t], k, v, t, valid);
          store_tile<L>(own + (t * L::HEADS + head) * L::TILE_BYTES, o, lane);
        }
      }
      u32 o[L::TILES][L::INNER / 16][L::PARTS][4];
#pragma unroll
      for (int t = 0; t < L::TILES; ++t) load_heads<L>(o[t], own + t * L::HEADS * L::TILE_BYTES, lane);
      __syncwarp();
      if constexpr (BUFFERS == 1) fetch(sequence + stride, other);
#pragma unroll
      for (int pair = 0; pair < L::DIM / 16; ++pair) finish_channels(w, o, pair, element);
    }
  }
};

template <class L, int WARPS, int BUFFERS, bool CHECK>
__device__ __forceinline__ void run_many(const ShortParams& p, u32 shared) {
  using Part = ManySequences<L, WARPS, BUFFERS, CHECK>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Part part{p, shared, shared + L::WEIGHT_BYTES + warp * (BUFFERS * Part::ROOM), lane};
  const u32 sequence = blockIdx.x + warp * gridDim.x;  // so that blocks are equally loaded
  part.fetch(sequence, part.buffers);
  copy_wait<0>();
  let_next_grid_start();
  __syncthreads();
  part.run(sequence, gridDim.x * WARPS);
}

template <class L, int WARPS, int BUFFERS>
__global__ void __launch_bounds__(32 * WARPS, 1) many_sequences(const ShortParams p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const u32 shared = shared_address(memory);
  copy_layer<L, 32 * WARPS>(shared, p);
  wait_for_previous_grid();
  if (!L::MASKED && !L::CAUSAL && p.length == L::SLOT)
    run_many<L, WARPS, BUFFERS, false>(p, shared);
  else
    run_many<L, WARPS, BUFFERS, true>(p, shared);
}

template <class L>
__global__ void __launch_bounds__(32 * L::HEADS * L::TILES, 1) few_sequences(const ShortParams p) {
  constexpr int WARPS = L::HEADS * L::TILES;
  extern __shared__ __align__(128) unsigned char memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = warp % L::TILES, head = warp / L::TILES;
  const u32 shared = shared_address(memory), outputs = shared + L::WEIGHT_BYTES;
  const u32 keys = outputs + L::OUTPUT_BYTES, values = keys + L::OUTPUT_BYTES;
  const i64 element = sequence_element(p, blockIdx.x, L::DIM);
  copy_layer<L, 32 * WARPS>(shared, p);
  wait_for_previous_grid();
  WarpSequence<L, 1> w(p, shared, 16 * tile, lane);
  float x[2][L::STEPS][4] = {};
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int token = w.first + 8 * row + w.g;
    if (token < p.length) {
      const float* const from = p.x + element + token * p.cells.step * L::DIM + 2 * w.c;
#pragma unroll
      for (int i = 0; i < L::DIM / 8; ++i) {
        const float2 pair = *reinterpret_cast<const float2*>(from + 8 * i);
        x[row][i / 2][i % 2 * 2] = pair.x, x[row][i / 2][i % 2 * 2 + 1] = pair.y;
      }
    }
  }
  const u32 valid = valid_keys<L>(p, element, lane);
#pragma unroll
  for (int row = 0; row < 2; ++row) w.set_row(row, x[row]);
  copy_wait<0>();
  __syncthreads();
  let_next_grid_start();
  u32 q[1][L::HEAD_STEPS][L::PARTS][4], k[L::TILES][L::HEAD_STEPS][L::PARTS][4], v[L::TILES][L::HEAD_STEPS][L::PARTS][4];
  {
    u32 own_k[1][L::HEAD_STEPS][L::PARTS][4], own_v[1][L::HEAD_STEPS][L::PARTS][4];
    w.project_head(q, own_k, own_v, head, valid);
    store_tile<L>(keys + warp * L::TILE_BYTES, own_k[0], lane);
    store_tile<L>(values + warp * L::TILE_BYTES, own_v[0], lane);
  }
  named_barrier(1 + head, 32 * L::TILES);
#pragma unroll
  for (int t = 0; t < L::TILES; ++t) {
    load_tile<L>(k[t], keys + (head * L::TILES + t) * L::TILE_BYTES, lane);
    load_tile<L>(v[t], values + (head * L::TILES + t) * L::TILE_BYTES, lane);
  }
  u32 result[L::HEAD_STEPS][L::PARTS][4];
  w.template attend<true>(result, q[0], k, v, tile, valid);
  store_tile<L>(outputs + (tile * L::HEADS + head) * L::TILE_BYTES, result, lane);
  __syncthreads();
  u32 o[1][L::INNER / 16][L::PARTS][4];
  load_heads<L>(o[0], outputs + tile * L::HEADS * L::TILE_BYTES, lane);
  // In place: all of the sequence was read before the barriers above, and these channels are this warp's own.
#pragma unroll 1
  for (int pair = head; pair < L::DIM / 16; pair += L::HEADS) finish_channels(w, o, pair, element);
}

}  // namespace warpweave::kernels::split
