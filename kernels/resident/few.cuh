// Entry point: latency form of resident/warp_kernels.cuh.
#pragma once

#include "resident/specification.cuh"
#include "resident/warp_kernels.cuh"

extern "C" __global__ void __launch_bounds__(WW_WARPS * 32, 1)
    resident_few(const __grid_constant__ warpweave::ResidentArguments args) {
  warpweave::attention_few<warpweave::Spec>(args);
}
