// Arithmetic without subnormal numbers for as long as an object of this type lives, on its thread.
//
// The tails of softmax and GELU are full of numbers below 2^-126, and a processor takes a hundred cycles and
// more for an operation that meets one: a trained model can run at half its speed because of values that
// change no result. They are taken as zero here, in operands and in results; the caller's mode comes back at
// the end.
#pragma once

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace warpweave::cpu::fused {

class FlushSubnormals {
 public:
#if defined(__SSE2__)
  FlushSubnormals() noexcept : before_(_mm_getcsr()) { _mm_setcsr(before_ | kResults | kOperands); }
  ~FlushSubnormals() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kResults = 0x8000,
                            kOperands = 0x0040;  // FTZ and DAZ of MXCSR, Intel SDM vol. 1, 10.2.3
  const unsigned before_;
#else
  FlushSubnormals() noexcept {}
#endif

 public:
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;
};

}  // namespace warpweave::cpu::fused
