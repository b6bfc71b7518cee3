// The end of an item of attention.cuh where that includes the output projection:
//
//   y[cell, 0 .. dim) = residual[cell] + scale (o W^T) + bias      o [64 queries of a group, heads HEAD] in shared memory
//
// In place, since q, k and v of all cells are made before and no other item reads these cells. The weights come through
// the ring of keys and values, CHUNK output channels after another, so that a block needs no room for all of them.
#pragma once

#include "common/types.cuh"
#include "long/attention_ring.cuh"
#include "long/output_channels.cuh"
#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/matrix.cuh"
#include "ptx/wgmma.cuh"

namespace warpweave::kernels::long_attention {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class F>
struct OutputPart {
  using T = typename F::T;
  using Site = Ring<F>;
  using Stage = typename Site::Stage;
  static constexpr int CHUNK = Plan::kChunk;
  using Product = float[CHUNK / 8][4];
  using Added = u32[CHUNK / 32][2][4];  // 8 channels of two tokens, every 32 channels

  const Site& at;

  // Of the group, in panels of 64 channels.
  static __device__ __forceinline__ u32 results(const Site& at) {
    return at.shared + F::plan.results_at() + at.group * F::panels * Plan::kPanelBytes;
  }
  // 8 channels of a row of the warp.
  static __device__ __forceinline__ u32 place(const Site& at, int row, int column) {
    return results(at) + column / 8 * Plan::kPanelBytes + (threadIdx.x / 32 % 4 * 16 + row) * 128 +
           ((column % 8) ^ (row % 8)) * 16;
  }

  // y = results times CHUNK output channels; a panel's product is under way while the next one is asked for.
  __device__ __forceinline__ void multiply(Product& y, Stage& stage) const {
    Stage before = stage;
#pragma unroll
    for (int panel = 0; panel < F::panels; ++panel) {
      const u64 a = swizzled_rows<128>(results(at) + panel * Plan::kPanelBytes),
                b = swizzled_rows<128>(at.keys(stage.place));
      barrier_wait(at.barrier(Site::kKeysFull, stage.place), stage.parity);
      barrier_wait(at.barrier(Site::kValuesFull, stage.place), stage.parity);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (panel == 0 && k == 0)
          Wgmma<T, CHUNK>::template shared<false>(y, a, b);
        else
          Wgmma<T, CHUNK>::template shared<true>(y, a + 2 * k, b + 2 * k);
      }
      wgmma_commit();
      if (panel > 0) {
        wgmma_wait<1>();
        release(before);
      }
      before = stage;
      stage.advance();
    }
    wgmma_wait<0>();
    wgmma_settle(y);
    release(before);
  }
  __device__ __forceinline__ void release(const Stage& stage) const {
    at.release(at.barrier(Site::kKeysFree, stage.place));
    at.release(at.barrier(Site::kValuesFree, stage.place));
  }

  // Element of y where the row's channels begin; rows past the end are neither read nor written.
  struct Places {
    i64 row[2];
    bool present[2];
  };

  __device__ __forceinline__ void load_residual(Added& r, const Places& to, int first) const {
#pragma unroll
    for (int i = 0; i < CHUNK / 32; ++i) {
      const int channel = first + i * 32 + threadIdx.x % 4 * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < 4; ++j) r[i][half][j] = 0;
        if (at.p.output.residual && to.present[half] && channel < at.p.output.dim)
          load_global(r[i][half], static_cast<const T*>(at.p.output.residual) + to.row[half] + channel);
      }
    }
  }

  __device__ __forceinline__ void store(const Product& y, const Added& r, const Places& to, int first) const {
    const OutputParams& out = at.p.output;
#pragma unroll
    for (int i = 0; i < CHUNK / 32; ++i) {
      const int channel = first + i * 32 + threadIdx.x % 4 * 8;
      if (channel >= out.dim) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        u32 v[4];
        finish_output<T>(v, y + 4 * i, half, r[i][half], out, channel);
        if (to.present[half])
          store_global(static_cast<T*>(out.y) + to.row[half] + channel, v[0], v[1], v[2], v[3]);
      }
    }
  }

  // Nothing is written where `right` is false for any thread of the group; returns whether it was right for all.
  __device__ __forceinline__ bool run(const Places& to, Stage& stage, bool right) const {
    Added r;
    load_residual(r, to, 0);
    fence_async_proxy();  // the products read what was stored
    const bool again = named_barrier_any(2 + at.group, 128, !right);
    // The same in all lanes, and known to be.
    if (__shfl_sync(0xffffffffu, static_cast<int>(again), 0)) {
      at.pass(stage, at.weight_panels());
    } else {
      const int chunks = Plan::chunks(at.p.output.dim);
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        Product y;
        multiply(y, stage);
        store(y, r, to, chunk * CHUNK);
        load_residual(r, to, (chunk + 1) * CHUNK);
      }
      named_barrier(2 + at.group, 128);  // the products have read the results
    }
    return !again;
  }
};

#endif

}  // namespace warpweave::kernels::long_attention
