// The copy engine on tensors (9.0 and up): boxes of up to 4 dimensions between global and shared memory, described by a
// tensor map (engine/cuda/tensor_map.h) that is a __grid_constant__ parameter of the kernel. What lies outside of the
// tensor is read as zeros and not written. Shared addresses are aligned to 8 rows of the swizzle, at least 128 bytes.
#pragma once

#include "ptx/types.cuh"

namespace warpweave {

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The box whose first element is (c0, c1, c2, c3), c0 being the contiguous dimension; its bytes, those outside of the
// tensor too, are counted on `barrier`.
__device__ __forceinline__ void copy_tensor(u32 shared, const void* map, u32 barrier, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// The same with a policy of ptx/l2.cuh.
__device__ __forceinline__ void copy_tensor(u32 shared, const void* map, u32 barrier, int c0, int c1, int c2, int c3,
                                            u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}

// The other way: from shared memory into the box, what lies outside of the tensor being left out. The writes to shared
// memory have been followed by fence_async_proxy().
__device__ __forceinline__ void store_tensor(const void* map, u32 shared, int c0, int c1, int c2, int c3, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3, %4, %5}], [%1], %6;" ::"l"(
          map),
      "r"(shared), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until this thread's groups of stores have read shared memory, or have written.
__device__ __forceinline__ void store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
#endif

}  // namespace warpweave
