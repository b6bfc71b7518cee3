// Writer of the safetensors format; see safetensors.h for the layout.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "warpweave/tensor.h"

namespace warpweave::weights {

// Names must be distinct. The file appears whole or not at all; tensors are aligned to their element size
// (widest first, then by name, as the official writer does). Throws Error(input): a name that is not UTF-8 or
// is
// "__metadata__", or a file that cannot be written.
void write_safetensors(const std::filesystem::path& path,
                       std::vector<std::pair<std::string, const Tensor*>> tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace warpweave::weights
