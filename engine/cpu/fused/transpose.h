// Blocks of a matrix turned in registers.
#pragma once

#include "cpu/fused/kernels.h"

namespace warpweave::cpu::fused::WARPWEAVE_ISA {

// out[c * out_stride + r] = f(x)[r * stride + c] for r < rows, c < columns; and zeros for r in
// [rows, padded_rows), padded_rows <= out_stride. f(v, c) takes the numbers v of a row from column c on.
template <class F>
WARPWEAVE_INLINE void transpose_block(const float* x, std::int64_t stride, std::int64_t rows,
                                      std::int64_t columns, float* out, std::int64_t out_stride,
                                      std::int64_t padded_rows, const F& f) {
  for (std::int64_t r0 = 0; r0 < padded_rows; r0 += kLanes) {
    for (std::int64_t c0 = 0; c0 < columns; c0 += kLanes) {
      const std::int64_t wide = columns - c0, tall = padded_rows - r0;
      V block[kLanes];
      if (wide >= kLanes && rows - r0 >= kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) block[i] = f(load(x + (r0 + i) * stride + c0), c0);
      } else {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i)
          block[i] = r0 + i < rows ? f(load_part(x + (r0 + i) * stride + c0, wide), c0) : zero();
      }
      transpose(block);
      if (wide >= kLanes && tall >= kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) store(out + (c0 + i) * out_stride + r0, block[i]);
      } else {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i)
          if (c0 + i < columns) store_part(out + (c0 + i) * out_stride + r0, block[i], tall);
      }
    }
  }
}

}  // namespace warpweave::cpu::fused::WARPWEAVE_ISA
