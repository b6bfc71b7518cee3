#include "cuda/family.h"

#include <algorithm>

#include "warpweave/error.h"

namespace warpweave::cuda {

std::string device_type(DType type) {
  switch (type) {
    case DType::f64:
      return "double";
    case DType::f32:
      return "float";
    case DType::f16:
      return "warpweave::f16";
    case DType::bf16:
      return "warpweave::bf16";
    default:
      throw Error(ErrorCode::internal, "no grid has this element type");
  }
}

std::string device_type(Precision precision) { return device_type(storage_type(precision)); }

std::string device_norm(graph::NormKind kind) {
  const char* name = kind == graph::NormKind::layer ? "layer" : kind == graph::NormKind::rms ? "rms" : "none";
  return std::string("warpweave::kernels::NormKind::") + name;
}

std::string device_activation(bool activated, graph::Activation activation) {
  return "warpweave::kernels::Activation::" +
         (activated ? std::string(graph::to_string(activation)) : "none");
}

std::int64_t loop_blocks(std::int64_t count, int threads) {
  return std::clamp<std::int64_t>((count + threads - 1) / threads, 1, 1 << 16);
}

}  // namespace warpweave::cuda
