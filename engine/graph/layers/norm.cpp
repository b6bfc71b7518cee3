#include "graph/layers/norm.h"

#include <fmt/format.h>

#include "graph/layers/norm_params.h"

namespace warpweave::graph {

Norm read_norm(const Params& params, std::string_view key, bool may_be_none) {
  Norm norm;
  if (may_be_none) {
    norm.kind = params.choice<NormKind>(
        key, {{"layer", NormKind::layer}, {"rms", NormKind::rms}, {"none", NormKind::none}}, NormKind::layer);
  } else {
    norm.kind =
        params.choice<NormKind>(key, {{"layer", NormKind::layer}, {"rms", NormKind::rms}}, NormKind::layer);
  }
  norm.eps = params.number("eps", {1e-30, 1e6}, norm.eps);
  return norm;
}

std::string describe_norm(const Norm& norm) {
  if (norm.kind == NormKind::none) return ", no norm";
  std::string s = norm.kind == NormKind::rms ? ", rms norm" : "";
  if (norm.eps != Norm{}.eps) s += fmt::format(", eps {:g}", norm.eps);
  return s;
}

std::string NormLayer::describe() const {
  return fmt::format("norm {} of {} channels{}", norm.kind == NormKind::rms ? "rms" : "layer", dim,
                     norm.eps != Norm{}.eps ? fmt::format(", eps {:g}", norm.eps) : "");
}

std::vector<TensorSpec> NormLayer::tensors() const {
  std::vector<TensorSpec> list;
  append_norm_tensors(list, norm, dim);
  return list;
}

double NormLayer::flops(const CellShape&) const { return 0; }

std::unique_ptr<Layer> parse_norm(Params& params, std::int64_t channels) {
  params.allow({"kind", "eps"});
  auto layer = std::make_unique<NormLayer>();
  layer->dim = channels;
  layer->norm = read_norm(params, "kind", false);
  return layer;
}

}  // namespace warpweave::graph
