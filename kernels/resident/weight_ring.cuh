// The weights of one head after the other, streamed through a few slots of shared memory.
//
// A turn reads 2 * heads items: the QKV parts of all heads, then their output parts; item i comes into slot i
// % stages. Every warp calls acquire(item), reads, then release(item), in order. On 9.0 and up the copy
// engine fills a slot and the warp that releases it last sends for the item that comes into it next, so no
// warp waits for another; before, all threads copy and the block meets at every acquire and release.
#pragma once

#include "layout/block_plan.h"
#include "ptx/copy.cuh"
#include "ptx/matrix.cuh"

namespace warpweave {

template <class S>
struct WeightRing {
  static constexpr layout::BlockPlan plan = S::plan;
  static constexpr int stages = plan.stages, heads = S::heads;
  static constexpr bool resident = stages >= 2 * heads;  // every item is loaded once and never replaced

  const char* weights;
  u32 base;   // of shared memory
  int items;  // to be read in all by this block

  static __device__ __forceinline__ bool is_out(int item) { return item % (2 * heads) >= heads; }
  static __device__ __forceinline__ int bytes(int item) {
    return is_out(item) ? plan.weights.head_out_bytes() : plan.weights.head_qkv_bytes();
  }
  __device__ __forceinline__ u32 slot(int item) const {
    return base + plan.stage() + item % stages * plan.stage_bytes();
  }
  __device__ __forceinline__ const char* source(int item) const {
    const int i = item % (2 * heads);
    return weights + (i >= heads ? plan.weights.out() + (i - heads) * plan.weights.head_out_bytes()
                                 : plan.weights.qkv() + i * plan.weights.head_qkv_bytes());
  }

#if __CUDA_ARCH__ >= 900
  static_assert(stages <= 21, "two barriers and a counter a slot fit the first 512 bytes");
  __device__ __forceinline__ u32 full(int item) const { return base + item % stages * 24; }
  __device__ __forceinline__ u32 empty(int item) const { return full(item) + 8; }
  __device__ __forceinline__ u32 count(int item) const { return full(item) + 16; }

  __device__ __forceinline__ void send(int item) const {
    barrier_expect(full(item), bytes(item));
    copy_bulk(slot(item), source(item), bytes(item), full(item));
  }

  // By all threads, before anything else; the block meets afterwards.
  __device__ __forceinline__ void start() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < stages; ++i) {
        barrier_init(full(i), 1);
        barrier_init(empty(i), S::wgmma ? S::warps : S::threads);
        store_shared(count(i), 0u);
      }
      barrier_init_fence();
      for (int i = 0; i < stages && i < items; ++i) send(i);
    }
  }

  __device__ __forceinline__ u32 acquire(int item) const {
    barrier_wait(full(item), resident ? 0 : item / stages & 1);
    return slot(item);
  }

  __device__ __forceinline__ void release(int item) const {
    if constexpr (resident) return;
    // The barrier orders the reads of all warps before the copy, the counter tells who is last. A warpgroup's
    // products are complete when its threads get here, so one lane may speak for a warp; reads by ldmatrix
    // are each lane's own.
    if (!S::wgmma) barrier_arrive(empty(item));
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      if (S::wgmma) barrier_arrive(empty(item));
      u32 before;
      asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;"
                   : "=r"(before)
                   : "r"(count(item))
                   : "memory");
      if (before == S::warps - 1) {
        store_shared(count(item), 0u);
        barrier_wait(empty(item), item / stages & 1);
        fence_async_proxy();
        if (item + stages < items) send(item + stages);
      }
    }
    __syncwarp();
  }
#else
  __device__ __forceinline__ void send(int item) const {
    if (item < items && (!resident || item < stages))
      for (int i = threadIdx.x * 16; i < bytes(item); i += S::warps * 32 * 16)
        copy_async<16>(slot(item) + i, source(item) + i);
    copy_commit();  // a group for every item, an empty one too, so that waiting can count them
  }

  __device__ __forceinline__ void start() const {
    for (int i = 0; i < stages; ++i) send(i);
  }

  __device__ __forceinline__ u32 acquire(int item) const {
    copy_wait<stages - 1>();
    __syncthreads();
    return slot(item);
  }

  __device__ __forceinline__ void release(int item) const {
    __syncthreads();
    send(item + stages);
  }
#endif
};

}  // namespace warpweave
