// cuda_reference: plain kernels that take every layer, and that the others are tested against.
#pragma once

#include <memory>

#include "cuda/family.h"

namespace warpweave::cuda {

std::unique_ptr<const Family> make_reference_family();

}  // namespace warpweave::cuda
