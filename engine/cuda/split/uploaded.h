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
  DeviceBuffer layer;  // warp_layer(), where a warp can run the layer at all
  float score_scale;
  UploadedLayer(const graph::AxialAttention& a, const Packed& p)
      : qkv(p.qkv), out(p.out), score_scale(p.score_scale) {
    if (!warp_takes(a)) return;
    const auto bytes = warp_layer(p, a.dim, a.heads * head_pitch(a.head_dim));
    layer = upload_bytes(std::span(bytes), "packed weights");
  }
};

// RoPE's table [position, dims / 2, (cos, sin)]; empty without RoPE.
DeviceBuffer upload_rotations(const graph::AxialAttention& layer, std::int64_t length);

}  // namespace warpweave::cuda::split
