// NumPy's .npy format (NumPy Enhancement Proposal 1, and the documentation of numpy.lib.format):
//
//   "\x93NUMPY", major, minor version       (1, 2 or 3, 0)
//   header length, little-endian            2 bytes in version 1, 4 bytes in 2 and 3
//   a Python dict literal, e.g. {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }, padded with
//   spaces, a newline last                  Latin-1 in versions 1 and 2, UTF-8 in 3
//   the elements                            to the end of the file
//
// Read here: C order, little-endian, f2 f4 f8 u1 b1. Everything else is refused by name, and so is any header
// that NumPy would not have written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "warpweave/tensor.h"

namespace warpweave {

struct NpyHeader {
  DType type = DType::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t data_begin = 0;  // byte of the file
};

// Checks the header at the start of a file of `file_size` bytes, of which `start` holds the first
// (all, or at least kNpyHeaderLimit of them). Throws Error(input) "FILE: what is wrong". The shape's bytes
// are then exactly the rest of the file.
NpyHeader parse_npy_header(std::span<const std::byte> start, std::uint64_t file_size,
                           const std::filesystem::path& file);

// Magic, version, length and the longest header accepted (NumPy's own limit is 10000 bytes).
inline constexpr std::size_t kNpyHeaderLimit = 12 + 65536;

Tensor load_npy(const std::filesystem::path& path);
// Throws Error(input) for bfloat16, which NumPy has no type for.
void save_npy(const std::filesystem::path& path, const Tensor& tensor);

}  // namespace warpweave
