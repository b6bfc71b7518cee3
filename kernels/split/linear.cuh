// Product of tokens in parts (parts.cuh) by a weight, with what follows it:
//
//   to_heads  r goes to q, k and v in parts, as store_heads has it
//   to_grid   y[cell(t), n] = r[t, n] + residual[cell(t), n], float32
//
// A block owns 128 tokens x 64 columns and takes 32 of k at a time through three stages of shared memory (cp.async). The
// order of the sum does not depend on the token's place.
// Limit: 6 k n flops a token at fp16's rate; bytes of a and y.
#pragma once

#include "ptx/grid.cuh"
#include "split/tile.cuh"

namespace warpweave::kernels::split {

template <int PARTS>
struct Linear {
  static constexpr int THREADS = 256, DOWN = 4, ACROSS = 2, TOKENS = 32 * DOWN, COLUMNS = 32 * ACROSS, STAGES = 3;
  static constexpr int A_PITCH = stage_pitch(PARTS), A_BYTES = TOKENS * A_PITCH;
  static constexpr int STAGE_BYTES = A_BYTES + COLUMNS * WEIGHT_PITCH;

  const void* a;  // [tokens, PARTS, k] fp16, k a multiple of 8
  const Weight& weight;
  i64 tokens, k, first_token;
  int first_column;

  // Zeros past the end. A thread keeps to one piece of 16 bytes of every ROWS-th row.
  __device__ __forceinline__ void copy_tokens(u32 stage, int first) const {
    constexpr int PIECES = PARTS * STAGE_PART / 16, ROWS = THREADS / PIECES;
    const int row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    const int from_k = first + piece % (STAGE_DEPTH / 8) * 8;
    const f16* const from =
        static_cast<const f16*>(a) + ((first_token + row) * PARTS + piece / (STAGE_DEPTH / 8)) * k + from_k;
#pragma unroll
    for (int r = 0; r < TOKENS; r += ROWS) {
      const bool present = first_token + row + r < tokens && from_k < k;
      copy_async<16>(stage + (row + r) * A_PITCH + piece * 16, present ? from + r * PARTS * k : a, present);
    }
  }

  __device__ __forceinline__ void send(u32 stage, int turn, int turns, i64 depth) const {
    if (turn < turns) {
      copy_tokens(stage, turn * STAGE_DEPTH);
      copy_weight<COLUMNS, THREADS>(stage + A_BYTES, weight, depth, first_column, turn * STAGE_DEPTH);
    }
    copy_commit();
  }

  __device__ __forceinline__ void run(Sums& sums, u32 shared) const {
    const int warp = threadIdx.x / 32, down = warp / ACROSS, across = warp % ACROSS;
    const int turns = static_cast<int>((k + STAGE_DEPTH - 1) / STAGE_DEPTH);
    const i64 depth = static_cast<i64>(turns) * STAGE_DEPTH;
    wait_for_previous_grid();
    let_next_grid_start();
    send(shared, 0, turns, depth);
    send(shared + STAGE_BYTES, 1, turns, depth);
    u32 here = shared, after = shared + STAGE_BYTES, free = shared + 2 * STAGE_BYTES;
    for (int turn = 0; turn < turns; ++turn) {
      copy_wait<1>();
      __syncthreads();  // this stage is here, and nobody uses the one before it any more
      send(free, turn + 2, turns, depth);
      multiply_stage<PARTS, A_PITCH, STAGE_PART>(sums, here + down * 32 * A_PITCH,
                                              here + A_BYTES + across * 32 * WEIGHT_PITCH);
      const u32 used = here;
      here = after;
      after = free;
      free = used;
    }
  }

  __device__ __forceinline__ i64 warp_token() const { return first_token + threadIdx.x / 32 / ACROSS * 32; }
  __device__ __forceinline__ int warp_column() const {
    return first_column + static_cast<int>(threadIdx.x) / 32 % ACROSS * 32;
  }
};

// The block's tile of r [tokens, n]; neighbouring blocks share tokens.
template <int PARTS>
__device__ __forceinline__ Linear<PARTS> linear_block(const void* a, const Weight& weight, i64 tokens, i64 n, i64 k) {
  const i64 across = (n + Linear<PARTS>::COLUMNS - 1) / Linear<PARTS>::COLUMNS;
  return {a, weight, tokens, k, blockIdx.x / across * Linear<PARTS>::TOKENS,
          static_cast<int>(blockIdx.x % across) * Linear<PARTS>::COLUMNS};
}

template <int PARTS, int HEAD>
__global__ void __launch_bounds__(256, 2) to_heads(const LinearParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Linear<PARTS> block = linear_block<PARTS>(p.a, p.heads.weight, p.heads.tokens, p.heads.n, p.k);
  Sums sums = {};
  block.run(sums, shared_address(memory));
  store_heads<PARTS, HEAD>(sums, p.heads, GlobalConstants{p.heads.weight}, block.warp_token(), block.warp_column());
}

template <int PARTS, bool RESIDUAL>
__global__ void __launch_bounds__(256, 2) to_grid(const OutputParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Linear<PARTS> block = linear_block<PARTS>(p.a, p.weight, p.tokens, p.n, p.k);
  Sums sums = {};
  block.run(sums, shared_address(memory));
  const i64 token = block.warp_token();
  const int column = lane_column(block.warp_column());
  if (column >= p.n) return;
  for_each_token(sums, GlobalConstants{p.weight}(column), [&](int row, const float(&v)[8]) {
    if (token + row >= p.tokens) return;
    const i64 place = cell_of(p.cells, token + row) * p.n + column;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      if (column + i >= p.n) break;
      float4 y = {v[i], v[i + 1], v[i + 2], v[i + 3]};
      if constexpr (RESIDUAL) {
        const float4 x = *reinterpret_cast<const float4*>(p.residual + place + i);
        y.x += x.x, y.y += x.y, y.z += x.z, y.w += x.w;
      }
      *reinterpret_cast<float4*>(p.y + place + i) = y;
    }
  });
}

}  // namespace warpweave::kernels::split
