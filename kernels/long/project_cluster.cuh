// Clusters of blocks (9.0 and up): who this block is, their barrier, arrivals at each other's mbarriers, and bulk
// copies that land in several blocks.
#pragma once

#include "ptx/types.cuh"

namespace warpweave {

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Of all threads of all blocks of the cluster; their earlier writes are visible behind it.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Arrives at the barrier that lies at this shared address in block `rank`.
__device__ __forceinline__ void barrier_arrive_at(u32 barrier, u32 rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// copy_bulk() to the same place of every block in `blocks` (a bit each), counted on the barrier of each.
__device__ __forceinline__ void copy_bulk_to_all(u32 shared, const void* global, u32 bytes, u32 barrier, u16 blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
          shared),
      "l"(global), "r"(bytes), "r"(barrier), "h"(blocks)
      : "memory");
}
#endif

}  // namespace warpweave
