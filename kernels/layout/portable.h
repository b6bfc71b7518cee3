// Index arithmetic that host and device share is constexpr on both.
#pragma once

#ifdef __CUDACC__
#define WARPWEAVE_BOTH __host__ __device__ constexpr
#else
#define WARPWEAVE_BOTH constexpr
#endif
