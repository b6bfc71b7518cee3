#include "cuda/split/uploaded.h"

#include <cmath>
#include <vector>

namespace warpweave::cuda::split {

DeviceBuffer upload_rotations(const graph::AxialAttention& layer, std::int64_t length) {
  std::vector<float> table;
  const std::int64_t dims = layer.rope ? layer.rope->dims : 0;
  table.reserve(static_cast<std::size_t>(length * dims));
  for (std::int64_t position = 0; position < length; ++position) {
    for (std::int64_t c = 0; c < dims; c += 2) {
      const double angle = static_cast<double>(position) *
                           std::pow(layer.rope->theta, -static_cast<double>(c) / static_cast<double>(dims));
      table.push_back(static_cast<float>(std::cos(angle)));
      table.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return upload(table);
}

}  // namespace warpweave::cuda::split
