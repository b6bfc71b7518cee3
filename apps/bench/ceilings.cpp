#include "bench/ceilings.h"

#include <algorithm>

namespace warpweave::bench {
namespace {

// Operations, bytes and exponentials in a second, measured on one H200 with random data: products of bf16 and
// fp16 8192^3 and of tf32 4096^3 through cuBLAS, device to device copy (read + write), ex2.approx from
// registers.
constexpr double kProduct16 = 787e12, kProductFp16 = 755e12, kProductTf32 = 395e12, kCopy = 4.3e12,
                 kExponential = 4.15e12;

double products(Precision precision) {
  switch (precision) {
    case Precision::bf16:
    case Precision::fp16:
      return kProduct16;
    case Precision::tf32:
      return kProductTf32;
    default:
      return kProductFp16 /
             3;  // one of fp32 is three of fp16 (docs/split.md); its own units do a fifth of that
  }
}

}  // namespace

double least_seconds(const std::string& gpu, Precision precision, const Work& work) {
  if (gpu.find("H200") == gpu.npos) return 0;
  return std::max(
      {work.flops / products(precision), work.grid_bytes / kCopy, work.exponentials / kExponential});
}

}  // namespace warpweave::bench
