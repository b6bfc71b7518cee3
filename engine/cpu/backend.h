// The CPU as a device: plans, packs weights once, and runs the steps of a plan one after the other.
#pragma once

#include <memory>

#include "plan/backend.h"

namespace warpweave::cpu {

std::unique_ptr<plan::Backend> make_backend(std::shared_ptr<const detail::ModelData> model,
                                            const EngineOptions& options);

}  // namespace warpweave::cpu
