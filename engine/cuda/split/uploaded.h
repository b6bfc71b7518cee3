// A packed operand on the device.
#pragma once

#include <span>

#include "cuda/memory.h"
#include "cuda/split/pack.h"
#include "cuda/split/warp_pack.h"
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
  DeviceBuffer warp;  // pack_warp_layer(), where a warp can run the layer at all
  float warp_score_scale = 1;

  UploadedLayer(const graph::AxialAttention& a, const weights::LayerWeights& weights, int parts)
      : UploadedLayer(pack(a, weights)) {
    if (!warp_takes(a)) return;
    const WarpPacked p = pack_warp_layer(a, weights, parts);
    warp = upload_bytes(std::span(p.bytes), "packed weights");
    warp_score_scale = p.score_scale;
  }

 private:
  explicit UploadedLayer(const Packed& p) : qkv(p.qkv), out(p.out), score_scale(p.score_scale) {}
};

// RoPE's table [position, dims / 2, (cos, sin)]; empty without RoPE.
DeviceBuffer upload_rotations(const graph::AxialAttention& layer, std::int64_t length);

}  // namespace warpweave::cuda::split
