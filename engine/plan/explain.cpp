#include "plan/explain.h"

#include <fmt/format.h>

#include <algorithm>

namespace warpweave::plan {

std::string explain(const std::vector<PlannedLayer>& layers, std::int64_t workspace_bytes) {
  std::size_t layer_width = 5, output_width = 6, name_width = 14;
  for (const PlannedLayer& l : layers) {
    layer_width = std::max(layer_width, l.layer.size());
    output_width = std::max(output_width, to_string(l.output).size());
    name_width = std::max(name_width, l.implementation.size());
  }
  std::string text = fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>9}  {:>9}\n", "layer", layer_width, "output",
                                 output_width, "implementation", name_width, "GFLOP", "MB");
  double flops = 0, bytes = 0;
  for (const PlannedLayer& l : layers) {
    text +=
        fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>9.4f}  {:>9.3f}\n", l.layer, layer_width, to_string(l.output),
                    output_width, l.implementation, name_width, l.flops / 1e9, l.bytes / 1e6);
    for (const auto& [name, reason] : l.declined) text += fmt::format("    {} declined: {}\n", name, reason);
    flops += l.flops;
    bytes += l.bytes;
  }
  text += fmt::format("total: {:.4f} GFLOP, {:.3f} MB read and written at least, workspace {:.3f} MB\n",
                      flops / 1e9, bytes / 1e6, static_cast<double>(workspace_bytes) / 1e6);
  return text;
}

}  // namespace warpweave::plan
