// Reading and writing tensors: NumPy's .npy (format versions 1 to 3, "NEP 1") and safetensors.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "warpweave/tensor.h"

namespace warpweave {

// Reads X.npy (C order, little-endian; f4, f2, f8, u1, bool) or X.safetensors (the tensor `name`, or the only
// one). Throws Error(input) naming the file and what is wrong.
Tensor load_tensor(const std::filesystem::path& path, const std::string& name = "x");

// Writes by the file's ending, .npy or .safetensors (as tensor `name`). The file appears whole or not at all:
// it is written beside its destination, flushed, and renamed. bfloat16 has no .npy type: Error(input).
void save_tensor(const std::filesystem::path& path, const Tensor& tensor, const std::string& name = "x");

// A whole safetensors file; metadata may be empty.
void save_safetensors(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace warpweave
