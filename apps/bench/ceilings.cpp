#include "bench/ceilings.h"

#include <algorithm>

namespace warpweave::bench {
namespace {

// Operations, bytes and exponentials in a second, measured on one H200 with random data: bf16 product 8192^3
// and tf32 product 4096^3 through cuBLAS, device to device copy (read + write), ex2.approx from registers.
constexpr double kProduct16 = 787e12, kProductTf32 = 395e12, kCopy = 4.3e12, kExponential = 4.15e12;

double products(Precision precision) {
  switch (precision) {
    case Precision::bf16:
    case Precision::fp16:
      return kProduct16;
    case Precision::tf32:
      return kProductTf32;
    default:
      return kProductTf32 / 3;  // an fp32 product is three of tf32; plain fp32 arithmetic is slower still
  }
}

}  // namespace

double least_seconds(const std::string& gpu, Precision precision, const Work& work) {
  if (gpu.find("H200") == gpu.npos) return 0;
  return std::max(
      {work.flops / products(precision), work.grid_bytes / kCopy, work.exponentials / kExponential});
}

}  // namespace warpweave::bench
