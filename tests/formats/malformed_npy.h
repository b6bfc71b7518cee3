// .npy files that must be refused, with the reason that the reader must give.
#pragma once

#include <string>
#include <vector>

#include "formats/malformed_safetensors.h"

namespace warpweave::testing {

std::vector<MalformedFile> malformed_npy();

// Magic, version, length and header as given, then the data. Version 1 has a 2-byte length, 2 and 3 a 4-byte
// one.
std::string npy_bytes(const std::string& header, const std::string& data, int version = 1);

}  // namespace warpweave::testing
