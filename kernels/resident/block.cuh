// Entry point of resident/block_kernel.cuh.
#pragma once

#include "resident/block_kernel.cuh"
#include "resident/specification.cuh"

extern "C" __global__ void __launch_bounds__(WW_WARPS * 32, 1)
    resident_block(const __grid_constant__ warpweave::ResidentArguments args) {
  extern __shared__ __align__(128) char memory[];
  const int lane = threadIdx.x % 32;
  const warpweave::BlockSequences<warpweave::Spec> block{
      args, warpweave::shared_address(memory), lane, static_cast<int>(threadIdx.x / 32), lane / 4, lane % 4};
  block.run();
}
