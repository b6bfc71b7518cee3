// composed: norm, cuBLASLt, attention on tensor cores, cuBLASLt. Any number of channels, head_dim to 256.
#pragma once

#include <memory>
#include <string>

#include "cuda/family.h"

namespace warpweave::cuda {

// `blas_missing`: why cuBLASLt cannot be used, or empty.
std::unique_ptr<const Family> make_composed_family(std::string blas_missing);

}  // namespace warpweave::cuda
