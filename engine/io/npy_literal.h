// The Python dict literal in the header of a .npy file.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace warpweave {

struct NpyLiteral {
  std::string descr;  // "<f4"
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

// What is wrong with a header, without the file's name.
class NpyFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Exactly the keys 'descr', 'fortran_order' and 'shape', once each, in any order; spaces may stand between
// any two tokens. Throws NpyFault.
NpyLiteral parse_npy_literal(std::string_view text);

}  // namespace warpweave
