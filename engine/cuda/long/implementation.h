// The implementation `long`: axial attention layers over sequences of any length on Hopper, in two
// projections of own and the attention of the composed family.
#pragma once

#include <memory>

#include "cuda/step.h"

namespace warpweave::cuda::long_sequences {

std::unique_ptr<const CudaImplementation> make_long();

}  // namespace warpweave::cuda::long_sequences
