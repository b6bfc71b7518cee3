// The table of RoPE's rotations.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace warpweave::cuda {

// (cos, sin) of position * theta^(-2c/dims) for every position and pair c: [length, pairs, 2]. (1, 0) for
// pairs past dims / 2. Angles are in float64, rounded once.
inline std::vector<float> rotation_table(double theta, std::int64_t dims, std::int64_t pairs,
                                         std::int64_t length) {
  std::vector<float> table;
  table.reserve(static_cast<std::size_t>(length * pairs * 2));
  std::vector<double> frequency(static_cast<std::size_t>(pairs), 0.0);
  for (std::int64_t c = 0; 2 * c < dims && c < pairs; ++c)
    frequency[c] = std::pow(theta, -2.0 * static_cast<double>(c) / static_cast<double>(dims));
  for (std::int64_t position = 0; position < length; ++position) {
    for (std::int64_t c = 0; c < pairs; ++c) {
      const double angle = static_cast<double>(position) * frequency[c];
      table.push_back(static_cast<float>(std::cos(angle)));
      table.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

}  // namespace warpweave::cuda
