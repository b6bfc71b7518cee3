// The implementation `resident`: axial attention layers whose sequences stay on chip.
#pragma once

#include <memory>

#include "cuda/step.h"

namespace warpweave::cuda::resident {

std::unique_ptr<const CudaImplementation> make_resident();

}  // namespace warpweave::cuda::resident
