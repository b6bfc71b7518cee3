#include "cuda/split/uploaded.h"

#include "cuda/rope.h"

namespace warpweave::cuda::split {

DeviceBuffer upload_rotations(const graph::AxialAttention& layer, std::int64_t length) {
  if (!layer.rope) return {};
  return upload(rotation_table(layer.rope->theta, layer.rope->dims, layer.rope->dims / 2, length));
}

}  // namespace warpweave::cuda::split
