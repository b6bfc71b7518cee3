#include "graph/layers/patch.h"

#include <fmt/format.h>

#include <limits>

#include "graph/params.h"
#include "warpweave/error.h"

namespace warpweave::graph {
namespace {

constexpr std::int64_t max_patch = 4096;

// Values in a patch; at most max_channels, as they become the channels of a product.
std::int64_t parse_patch(const Params& params, std::int64_t channels) {
  const std::int64_t patch = params.integer("patch", max_patch);
  if (patch * patch * channels > max_channels) {
    params.fail("patch",
                fmt::format("a patch of {0} x {0} pixels with {1} channels holds more than {2} values", patch,
                            channels, max_channels));
  }
  return patch;
}

double patch_flops(double cells, std::int64_t patch, std::int64_t channels, std::int64_t dim) {
  return 2 * cells * static_cast<double>(patch * patch * channels) * static_cast<double>(dim);
}

}  // namespace

std::string PatchEmbed::describe() const {
  return fmt::format("patch_embed {0} x {0} x {1} -> {2}{3}", patch, channels, dim, bias ? "" : ", no bias");
}

std::vector<TensorSpec> PatchEmbed::tensors() const {
  std::vector<TensorSpec> list = {{"weight", {dim, patch * patch * channels}}};
  if (bias) list.push_back({"bias", {dim}});
  return list;
}

CellShape PatchEmbed::output(const CellShape& input) const {
  if (input.rows % patch != 0 || input.columns % patch != 0) {
    throw Error(ErrorCode::input,
                fmt::format("{0} x {1} pixels are no whole number of {2} x {2} patches; pad or crop "
                            "both sides to multiples of {2}",
                            input.rows, input.columns, patch));
  }
  return {input.rows / patch, input.columns / patch, dim};
}

double PatchEmbed::flops(const CellShape& input) const {
  const double cells = static_cast<double>(input.rows / patch) * static_cast<double>(input.columns / patch);
  return patch_flops(cells, patch, channels, dim);
}

std::unique_ptr<Layer> parse_patch_embed(Params& params, std::int64_t channels) {
  params.allow({"patch", "channels", "dim", "bias"});
  auto layer = std::make_unique<PatchEmbed>();
  layer->channels = params.integer("channels");
  if (layer->channels != channels) {
    params.fail("channels",
                fmt::format("{}, but the grid that comes here has {}", layer->channels, channels));
  }
  layer->patch = parse_patch(params, layer->channels);
  layer->dim = params.integer("dim");
  layer->bias = params.flag("bias", layer->bias);
  return layer;
}

std::string PatchUnembed::describe() const {
  return fmt::format("patch_unembed {0} -> {1} x {1} x {2}{3}", dim, patch, channels,
                     bias ? "" : ", no bias");
}

std::vector<TensorSpec> PatchUnembed::tensors() const {
  std::vector<TensorSpec> list = {{"weight", {patch * patch * channels, dim}}};
  if (bias) list.push_back({"bias", {patch * patch * channels}});
  return list;
}

CellShape PatchUnembed::output(const CellShape& input) const {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  if (input.rows > most / patch || input.columns > most / patch) {
    throw Error(ErrorCode::input, "the image would be too large for 64-bit sizes");
  }
  return {input.rows * patch, input.columns * patch, channels};
}

double PatchUnembed::flops(const CellShape& input) const {
  const double cells = static_cast<double>(input.rows) * static_cast<double>(input.columns);
  return patch_flops(cells, patch, channels, dim);
}

std::unique_ptr<Layer> parse_patch_unembed(Params& params, std::int64_t channels) {
  params.allow({"patch", "channels", "bias"});
  auto layer = std::make_unique<PatchUnembed>();
  layer->dim = channels;
  layer->channels = params.integer("channels");
  layer->patch = parse_patch(params, layer->channels);
  layer->bias = params.flag("bias", layer->bias);
  return layer;
}

}  // namespace warpweave::graph
