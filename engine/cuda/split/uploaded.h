// A packed operand on the device.
#pragma once

#include <span>

#include "cuda/memory.h"
#include "cuda/split/pack.h"
#include "split/params.h"

namespace warpweave::cuda::split {

class Uploaded {
 public:
  explicit Uploaded(const Operand& o)
      : rows_(upload_bytes(std::as_bytes(std::span(o.rows)), "packed weights")),
        factor_(upload(o.factor)),
        bias_(upload(o.bias)) {}

  kernels::split::Weight weight() const noexcept {
    return {rows_.data(), reinterpret_cast<const float*>(factor_.data()),
            reinterpret_cast<const float*>(bias_.data())};
  }

 private:
  DeviceBuffer rows_, factor_, bias_;
};

// The weights of a layer, as all forms of the kernels take them.
struct UploadedLayer {
  Uploaded qkv, out;
  float score_scale;
  explicit UploadedLayer(const Packed& p) : qkv(p.qkv), out(p.out), score_scale(p.score_scale) {}
};

// RoPE's table [position, dims / 2, (cos, sin)]; empty without RoPE.
DeviceBuffer upload_rotations(const graph::AxialAttention& layer, std::int64_t length);

}  // namespace warpweave::cuda::split
