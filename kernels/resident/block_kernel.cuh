// Resident kernel for whole sequences in a block: K and V of one head at a time in shared memory, everything
// else in registers.
//
//   N = norm(X);  Q, K, V = N Wqkv^T + b;  O_h = softmax(Q_h K_h^T) V_h;  Y = X + concat(O) Wout^T + b
//
// X [length, dim] is a row or a column of the grid. A block owns one sequence, or several (block_tokens.cuh).
// N stays in shared memory as A operand; for each head a warp makes Q (registers), K and V (shared memory, V
// transposed; block_heads.cuh), meets the warps that share its sequence, attends with a running softmax over
// chunks of 64 keys (block_attention.cuh) and keeps its output. After the last head the outputs are multiplied
// by Wout. Weights are streamed head by head (weight_ring.cuh); products are block_products.cuh's.
//
// Shared memory (layout/block_plan.h), bytes: biases; N tokens * dim * 2; K and V tokens * head_width * 2
// each, for two heads in turn; stages * 3 dim * head_width * 2 of weights. 64 tokens x 2 sequences, dim 256,
// heads of 32: 64 K + 32 K + 2 * 48 K.
//
// Limits on a H200, a layer: 8 x 64 x 64, dim 256, 8 heads: 19.4 GFLOP (17.2 of them by weights), 25 us at
// 787 TFLOP/s, 16.8 M exponentials 4 us. 256 x 256, dim 128, 4 heads: 17.2 GFLOP, 22 us, 67 M exponentials 16
// us.
#pragma once

#include "ptx/grid.cuh"
#include "resident/block_attention.cuh"
#include "resident/weight_ring.cuh"

namespace warpweave {

template <class S, bool Check>
struct BlockSequences : BlockAttention<S, Check> {
  using Base = BlockAttention<S, Check>;
  using Base::args;
  using Base::base;
  using Base::c;
  using Base::early_residual;
  using Base::finish_head;
  using Base::hs;
  using Base::load;
  using Base::load_residual;
  using Base::meet;
  using Base::out_n;
  using Base::plan;
  using Base::project_head;
  using Base::publish;
  using Base::qkv_n;
  using Base::send_ahead;
  using Base::start_head;
  using Base::store;
  using Base::tiles;

  static __device__ __forceinline__ void copy_heads(u32 (&to)[tiles][hs][4],
                                                    const u32 (&from)[tiles][hs][4]) {
#pragma unroll
    for (int t = 0; t < tiles; ++t)
#pragma unroll
      for (int s = 0; s < hs; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) to[t][s][i] = from[t][s][i];
  }

  __device__ __forceinline__ void run() const {
    const u32 blocks = (args.sequences + plan.sequences() - 1) / plan.sequences();
    const int turns = (blocks - blockIdx.x + gridDim.x - 1) / gridDim.x;
    const WeightRing<S> ring{static_cast<const char*>(args.weights), base, turns * S::heads * 2};
    ring.start();
    for (int i = threadIdx.x * 16; i < S::weights.qkv(); i += S::threads * 16) {
      u32 w[4];
      load_global(w, static_cast<const char*>(args.weights) + i);
      store_shared(base + plan.bias() + i, w);
    }
    wait_for_previous_grid();
    int item = 0;
#pragma unroll 1
    for (int turn = 0; turn < turns; ++turn) {
      const u32 first_sequence = (blockIdx.x + turn * gridDim.x) * plan.sequences();
      load(first_sequence);
      publish();
      if (turn == 0) {
        __syncthreads();
        let_next_grid_start();
      } else {
        meet();
      }
      u32 o[S::heads][tiles][hs]
           [4];  // indexed at run time: in local memory, which is less than more registers
      float ahead[send_ahead ? qkv_n : 1][4];
      if constexpr (send_ahead) start_head(ahead, 0, 0, ring.acquire(item));
#pragma unroll 1
      for (int h = 0; h < S::heads; ++h, ++item) {
        u32 q[tiles][hs][4], result[tiles][hs][4];
        if constexpr (send_ahead) {
          Base::template wait<0, true>();
          ring.release(item);
          finish_head(ahead, q[0], 0, h);
          publish();
          meet();  // also: K and V of the head before the last are read
          if (h + 1 < S::heads)
            Base::template attend_safely<true>(result, q, h, ahead, ring.acquire(item + 1));
          else
            Base::template attend_safely<false>(result, q, h, nullptr, 0);
        } else {
          const u32 matrix = ring.acquire(item);
          project_head(q, h, matrix);
          ring.release(item);
          publish();
          meet();
          Base::template attend_safely<false>(result, q, h, nullptr, 0);
        }
        copy_heads(o[h], result);
      }
      float y[tiles][out_n][4];
#pragma unroll
      for (int t = 0; t < tiles; ++t)
        Base::template start<S::out_bias, S::dim_width>(y[t], base + plan.bias() + S::weights.out_bias(), c);
      u32 residual[early_residual ? tiles : 1][2][S::groups];
      if constexpr (S::residual && early_residual) {
#pragma unroll
        for (int t = 0; t < tiles; ++t) load_residual(residual[t], first_sequence, t);
      }
      u32 a[tiles][hs][4];
      copy_heads(a, o[0]);
#pragma unroll 1
      for (int h = 0; h < S::heads; ++h, ++item) {
        u32 next[tiles][hs][4];  // loaded while the product is under way
        copy_heads(next, o[min(h + 1, S::heads - 1)]);
        const u32 out = ring.acquire(item);
#pragma unroll
        for (int t = 0; t < tiles; ++t)
          Base::template multiply_all<S::dim_width, hs, out_n * layout::core_pair_bytes, S::wgmma, true>(
              y[t], a[t], out);
        Base::template wait<0, S::wgmma>();
        ring.release(item);
        copy_heads(a, next);
      }
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        if constexpr (S::residual && !early_residual) load_residual(residual[0], first_sequence, t);
        store(y[t], residual[early_residual ? t : 0], first_sequence, t);
      }
      meet();  // N, K, V and the key bits are read
    }
  }
};

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    resident_block(const __grid_constant__ ResidentArguments args) {
  extern __shared__ __align__(128) char memory[];
  const u32 base = shared_address(memory);
  const int lane = threadIdx.x % 32,
            warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // known to be uniform
  if (!S::mask && !S::causal && args.length == S::slot)
    BlockSequences<S, false>{args, base, lane, warp, lane / 4, lane % 4}.run();
  else
    BlockSequences<S, true>{args, base, lane, warp, lane / 4, lane % 4}.run();
}

}  // namespace warpweave
