// Shapes through the graph, and what layers share.
#include <fmt/format.h>

#include <limits>

#include "graph/layer.h"
#include "graph/text.h"
#include "warpweave/error.h"

namespace warpweave::graph {
namespace {

std::string in_words(const CellShape& s) {
  return fmt::format("{} x {} with {} channels", s.rows, s.columns, s.channels);
}

// Element offsets and byte counts (8 bytes at most) of one sample must fit in 63 bits.
bool fits(const CellShape& s) {
  std::int64_t elements = 0, bytes = 0;
  return !__builtin_mul_overflow(s.rows, s.columns, &elements) &&
         !__builtin_mul_overflow(elements, s.channels, &elements) &&
         !__builtin_mul_overflow(elements, 8, &bytes);
}

}  // namespace

void append_norm_tensors(std::vector<TensorSpec>& list, const Norm& norm, std::int64_t channels,
                         std::string_view prefix) {
  if (norm.kind == NormKind::none) return;
  list.push_back({fmt::format("{}weight", prefix), {channels}});
  if (norm.kind == NormKind::layer) list.push_back({fmt::format("{}bias", prefix), {channels}});
}

std::vector<CellShape> Graph::shapes(const CellShape& input) const {
  const Place whole{file, 0, {}};
  if (input.rows < 1 || input.columns < 1 || input.channels < 1) {
    whole.fail(fmt::format("the input grid is {}; every size must be at least 1", in_words(input)));
  }
  if (input.channels != input_channels) {
    whole.fail(
        fmt::format("the model takes grids with {} channels, got {}", input_channels, in_words(input)));
  }
  if (!fits(input))
    whole.fail(fmt::format("the input grid, {}, is too large for 64-bit sizes", in_words(input)));
  std::vector<CellShape> list;
  CellShape shape = input;
  for (const Node& node : nodes) {
    const Place place{file, node.line, fmt::format("{} ({})", node.layer->type(), node.path)};
    try {
      shape = node.layer->output(shape);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::input) throw;
      place.fail(e.what());
    }
    if (!fits(shape))
      place.fail(fmt::format("its output, {}, is too large for 64-bit sizes", in_words(shape)));
    list.push_back(shape);
  }
  return list;
}

}  // namespace warpweave::graph
