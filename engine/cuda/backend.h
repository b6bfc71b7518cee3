// NVIDIA GPUs as a device. Everything else in this folder is private to it.
#pragma once

#include <memory>
#include <string>

#include "plan/backend.h"

namespace warpweave::cuda {

// Why no GPU can be used ("no NVIDIA driver is loaded", "NVRTC was not found; ..."), or empty when `index`
// can.
std::string unusable(int index);

// Throws Error(device) with the text of unusable().
std::unique_ptr<plan::Backend> make_backend(std::shared_ptr<const detail::ModelData> model,
                                            const EngineOptions& options);

}  // namespace warpweave::cuda
