// The JSON header of a safetensors file to entries; the grammar only, sizes and ranges are checked by the
// caller.
#pragma once

#include <stdexcept>
#include <string_view>

#include "weights/safetensors.h"

namespace warpweave::weights {

// What is wrong with a header, without the file's name.
class HeaderFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws HeaderFault: not JSON, not UTF-8, a duplicate or unknown key, a wrong type, a negative or fractional
// number.
SafetensorsHeader parse_header_json(std::string_view text);

}  // namespace warpweave::weights
