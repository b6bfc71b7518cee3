// Files that break one rule of the safetensors format each, with the reason that the reader must give.
#pragma once

#include <string>
#include <vector>

namespace warpweave::testing {

struct MalformedFile {
  std::string kind;    // a file name without its ending
  std::string bytes;   // the whole file
  std::string phrase;  // what the message must contain
  // Set where the official reader takes the file and ours refuses it: why.
  std::string stricter = {};
};

std::vector<MalformedFile> malformed_safetensors();

// 8 bytes of length, the header, the data.
std::string safetensors_bytes(const std::string& header, const std::string& data = {});

}  // namespace warpweave::testing
