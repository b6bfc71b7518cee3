// What stays in L2: policies that loads and stores carry (8.0 and up).
#pragma once

#include "ptx/types.cuh"

namespace warpweave {

// Of what is stored, this share (above 0, at most 1), chosen by address, is the last to leave.
__device__ __forceinline__ u64 keep_in_l2(float share) {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, %1;" : "=l"(policy) : "f"(share));
  return policy;
}

// What is loaded is the first to leave, or as other loads.
__device__ __forceinline__ u64 leave_l2(bool first) {
  u64 policy;
  if (first)
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  else
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void store_global(void* p, u32 a, u32 b, u32 c, u32 d, u64 policy) {
  asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1,%2,%3,%4}, %5;" ::"l"(p), "r"(a), "r"(b), "r"(c), "r"(d),
               "l"(policy)
               : "memory");
}

}  // namespace warpweave
