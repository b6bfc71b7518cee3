// A whole layer on sequences of at most 32 tokens, a warp for each, operands in parts (parts.cuh):
//
//   n = norm(x);  q, k, v = n Wqkv^T + b;  o = softmax(q k^T) v for each head;  y = x + o Wout^T + b
//
// `many_sequences` (throughput): persistent blocks, both weights stay in shared memory; a warp takes a sequence at a
// time, all heads in a row, and fetches its next one meanwhile. `few_sequences` (latency): a block takes a sequence, a
// warp 16 tokens of one head; k and v, then the heads' results meet in shared memory.
// Both sum in the same order, so they give the same bits and may be chosen by the number of sequences.
//
// Shared memory at dim 64, 4 heads of 16: 66 KB of weights; then, many: 16 KB a warp, with KEEP 20 KB; few: 24 KB (12 in tf32).
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

__device__ __forceinline__ float4 load_four(u32 address) {
  u32 v[4];
  load_shared(v, address);
  return {__uint_as_float(v[0]), __uint_as_float(v[1]), __uint_as_float(v[2]), __uint_as_float(v[3])};
}

// Channels 16 pair .. of y for the warp's tokens, from the heads' results and the residual r.
template <class L, int OWN>
__device__ __forceinline__ void finish_channels(const WarpSequence<L, OWN>& w, const u32 (&o)[OWN][L::INNER / 16][L::PARTS][4],
                                                const float4 (&r)[2 * OWN], int pair, i64 element) {
  const ShortParams& p = w.p;
  float d[OWN][2][4];
  w.template project<L::DIM, L::OUT_DEPTH>(d, o, w.weights + L::OUT, 16 * pair);
  const int column = 16 * pair + 4 * w.c;
  const float4 factor = load_four(w.weights + L::OUT_FACTOR + column * 4);
  const float4 bias = load_four(w.weights + L::OUT_BIAS + column * 4);
#pragma unroll
  for (int row = 0; row < 2 * OWN; ++row) {
    const int token = w.first + 8 * row + w.g;
    const float* const first = d[row / 2][0] + row % 2 * 2;
    const float* const second = d[row / 2][1] + row % 2 * 2;
    const float4 y = {
        r[row].x + __fmaf_rn(first[0], factor.x, bias.x), r[row].y + __fmaf_rn(first[1], factor.y, bias.y),
        r[row].z + __fmaf_rn(second[0], factor.z, bias.z), r[row].w + __fmaf_rn(second[1], factor.w, bias.w)};
    if (token < p.length) *reinterpret_cast<float4*>(p.y + element + token * p.cells.step * L::DIM + column) = y;
  }
}

// The residual of these channels, from the grid.
template <class L, int OWN>
__device__ __forceinline__ void load_residual(float4 (&r)[2 * OWN], const WarpSequence<L, OWN>& w, int pair, i64 element) {
  const ShortParams& p = w.p;
#pragma unroll
  for (int row = 0; row < 2 * OWN; ++row) {
    const int token = w.first + 8 * row + w.g;
    r[row] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (L::RESIDUAL && token < p.length)
      r[row] = *reinterpret_cast<const float4*>(p.x + element + token * p.cells.step * L::DIM + 16 * pair + 4 * w.c);
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

// A warp's part of many_sequences. KEEP: x stays in shared memory beside the heads' results, which otherwise take its
// place; the residual is then read again from the grid.
template <class L, int WARPS, bool KEEP, bool CHECK>
struct ManySequences {
  static constexpr int ROWS = 2 * L::TILES, PIECES = L::DIM / 16, X_BYTES = ROWS * PIECES * 512;
  static constexpr int BUFFER = KEEP || X_BYTES > L::OUTPUT_BYTES ? X_BYTES : L::OUTPUT_BYTES;
  static constexpr int BYTES = 2 * BUFFER + (KEEP ? L::OUTPUT_BYTES : 0);

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

  __device__ __forceinline__ void run(u32 sequence, u32 stride) const {
#pragma unroll 1
    for (int turn = 0; sequence < p.sequences; sequence += stride, turn ^= 1) {
      const u32 x = buffers + turn * BUFFER, results = KEEP ? buffers + 2 * BUFFER : x;
      const i64 element = sequence_element(p, sequence, L::DIM);
      copy_wait<0>();
      WarpSequence<L, L::TILES> w(p, weights, 0, lane);
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
#pragma unroll 1
      for (int head = 0; head < L::HEADS; ++head) {
        u32 q[L::TILES][L::HEAD_STEPS][L::PARTS][4], k[L::TILES][L::HEAD_STEPS][L::PARTS][4],
            v[L::TILES][L::HEAD_STEPS][L::PARTS][4];
        w.project_head(q, k, v, head, valid);
#pragma unroll
        for (int t = 0; t < L::TILES; ++t) {
          u32 o[L::HEAD_STEPS][L::PARTS][4];
          w.template attend<CHECK>(o, q[t], k, v, t, valid);
          store_tile<L>(results + (t * L::HEADS + head) * L::TILE_BYTES, o, lane);
        }
      }
      u32 o[L::TILES][L::INNER / 16][L::PARTS][4];
#pragma unroll
      for (int t = 0; t < L::TILES; ++t) load_heads<L>(o[t], results + t * L::HEADS * L::TILE_BYTES, lane);
#pragma unroll
      for (int pair = 0; pair < PIECES; ++pair) {
        float4 r[ROWS];
        if constexpr (KEEP && L::RESIDUAL) {
#pragma unroll
          for (int row = 0; row < ROWS; ++row) r[row] = load_four(place(x, row, pair, lane));
        } else {
          load_residual(r, w, pair, element);
        }
        finish_channels(w, o, r, pair, element);
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
  copy_wait<0>();
  let_next_grid_start();
  __syncthreads();
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

template <class L>
__global__ void __launch_bounds__(32 * L::HEADS * L::TILES, 2) few_sequences(const ShortParams p) {
  constexpr int WARPS = L::HEADS * L::TILES;
  extern __shared__ __align__(128) unsigned char memory[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = warp % L::TILES, head = warp / L::TILES;
  const u32 shared = shared_address(memory), outputs = shared + L::WEIGHT_BYTES;
  const u32 keys = outputs + L::OUTPUT_BYTES, values = keys + L::OUTPUT_BYTES;
  const i64 element = sequence_element(p, blockIdx.x, L::DIM);
  copy_layer<L, 32 * WARPS>(shared, p);
  wait_for_previous_grid();
  let_next_grid_start();
  WarpSequence<L, 1> w(p, shared, 16 * tile, lane);
  float x[2][L::STEPS][4] = {};
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int token = w.first + 8 * row + w.g;
    if (token < p.length) {
      const float* const from = p.x + element + token * p.cells.step * L::DIM + 4 * w.c;
#pragma unroll
      for (int i = 0; i < L::STEPS; ++i) {
        const float4 four = *reinterpret_cast<const float4*>(from + 16 * i);
        x[row][i][0] = four.x, x[row][i][1] = four.y, x[row][i][2] = four.z, x[row][i][3] = four.w;
      }
    }
  }
  const u32 valid = valid_keys<L>(p, element, lane);
#pragma unroll
  for (int row = 0; row < 2; ++row) w.set_row(row, x[row]);
  copy_wait<0>();
  __syncthreads();
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
  float4 r[2];  // of the first channels that this warp makes; on its way while the block gathers
  load_residual(r, w, min(head, L::DIM / 16 - 1), element);
  __syncthreads();
  u32 o[1][L::INNER / 16][L::PARTS][4];
  load_heads<L>(o[0], outputs + tile * L::HEADS * L::TILE_BYTES, lane);
  // In place: all of the sequence was read before the barriers above, and these channels are this warp's own.
#pragma unroll 1
  for (int pair = head; pair < L::DIM / 16; pair += L::HEADS) {
    if (pair != head) load_residual(r, w, pair, element);
    finish_channels(w, o, r, pair, element);
  }
}

}  // namespace warpweave::kernels::split
