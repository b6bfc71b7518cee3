#include "graph/registry.h"

// A layer type NAME is one line here; graph/layers/ defines its parse_NAME(Params&, channels).
#define WARPWEAVE_LAYER_TYPES(X) \
  X(axial_attention)             \
  X(feed_forward)                \
  X(norm)                        \
  X(linear)                      \
  X(patch_embed)                 \
  X(patch_unembed)               \
  X(position_embedding)

namespace warpweave::graph {

#define X(name) std::unique_ptr<Layer> parse_##name(Params& params, std::int64_t channels);
WARPWEAVE_LAYER_TYPES(X)
#undef X

std::span<const LayerType> layer_types() noexcept {
#define X(name) LayerType{#name, parse_##name},
  static constexpr LayerType types[] = {WARPWEAVE_LAYER_TYPES(X)};
#undef X
  return types;
}

}  // namespace warpweave::graph
