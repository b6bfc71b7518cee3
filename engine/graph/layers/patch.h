// Between images and grids. A patch is p x p pixels, flattened in (row, column, channel) order.
#pragma once

#include "graph/layer.h"

namespace warpweave::graph {

// Image [H*p, W*p, channels] -> grid [H, W, dim]: each patch times weight [dim, p*p*channels], plus bias.
struct PatchEmbed final : Layer {
  std::int64_t patch = 0, channels = 0, dim = 0;
  bool bias = true;

  std::string_view type() const noexcept override { return "patch_embed"; }
  std::string describe() const override;
  std::vector<TensorSpec> tensors() const override;
  std::int64_t input_channels() const noexcept override { return channels; }
  std::int64_t output_channels() const noexcept override { return dim; }
  CellShape output(const CellShape& input) const override;  // sides must be multiples of the patch
  double flops(const CellShape& input) const override;
};

// Grid [H, W, dim] -> image [H*p, W*p, channels]: each cell times weight [p*p*channels, dim], plus bias.
struct PatchUnembed final : Layer {
  std::int64_t dim = 0, patch = 0, channels = 0;
  bool bias = true;

  std::string_view type() const noexcept override { return "patch_unembed"; }
  std::string describe() const override;
  std::vector<TensorSpec> tensors() const override;
  std::int64_t input_channels() const noexcept override { return dim; }
  std::int64_t output_channels() const noexcept override { return channels; }
  CellShape output(const CellShape& input) const override;
  double flops(const CellShape& input) const override;
};

}  // namespace warpweave::graph
