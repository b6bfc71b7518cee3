#include "graph/layers/axial_attention.h"

#include <fmt/format.h>

#include <cmath>

#include "graph/layers/norm_params.h"

namespace warpweave::graph {
namespace {

// A tensor whose rows are those of q, k and v; the weight file may hold the three apart.
TensorSpec packed_qkv(std::string_view kind, std::int64_t inner, std::vector<std::int64_t> trailing) {
  const auto shape = [&](std::int64_t rows) {
    std::vector<std::int64_t> s = {rows};
    s.insert(s.end(), trailing.begin(), trailing.end());
    return s;
  };
  TensorSpec spec{fmt::format("qkv.{}", kind), shape(3 * inner)};
  for (const char part : {'q', 'k', 'v'})
    spec.parts.push_back({fmt::format("{}.{}", part, kind), shape(inner)});
  return spec;
}

std::int64_t head_size(const Params& params, std::int64_t channels, std::int64_t heads) {
  if (params.has("head_dim")) {
    const std::int64_t head_dim = params.integer("head_dim");
    if (heads * head_dim > max_channels) {
      params.fail("head_dim", fmt::format("{} heads of {} are {} channels, more than {}", heads, head_dim,
                                          heads * head_dim, max_channels));
    }
    return head_dim;
  }
  if (channels % heads != 0) {
    std::int64_t below = heads, above = heads;  // the nearest numbers that work
    while (channels % below != 0 && below > 1) --below;
    while (channels % above != 0 && above < channels) ++above;
    params.fail("heads",
                heads > channels
                    ? fmt::format("{} heads do not divide {} channels; give head_dim, or at most {} heads",
                                  heads, channels, channels)
                    : fmt::format("{} heads do not divide {} channels; use {} or {} heads, or give head_dim",
                                  heads, channels, below, above));
  }
  return channels / heads;
}

std::optional<Rope> parse_rope(const Params& params, std::int64_t head_dim) {
  const yaml::Entry* entry = params.find("rope");
  if (entry == nullptr) return std::nullopt;
  if (entry->value->kind == yaml::Kind::scalar && entry->value->text == "none") return std::nullopt;
  if (entry->value->kind != yaml::Kind::map) {
    params.fail("rope",
                fmt::format("expected a map like {{theta: 10000, style: half}}, {{}} for the defaults, or "
                            "none; got {}",
                            in_words(*entry->value)));
  }
  Params rope = params.child("rope");
  rope.allow({"theta", "style", "dims"});
  Rope result;
  result.theta = rope.number("theta", {1e-6, 1e12}, result.theta);
  result.style = rope.choice<Rope::Style>(
      "style", {{"half", Rope::Style::half}, {"interleaved", Rope::Style::interleaved}}, result.style);
  result.dims = rope.integer("dims", max_channels, head_dim);
  if (result.dims > head_dim) {
    rope.fail("dims", fmt::format("{} is more than the {} channels of a head", result.dims, head_dim));
  }
  if (result.dims % 2 != 0) {
    rope.fail("dims",
              fmt::format("{}{} is odd, but channels are rotated in pairs; give an even number up to {}",
                          result.dims, rope.has("dims") ? "" : " (the default, head_dim)", head_dim));
  }
  return result;
}

}  // namespace

std::string AxialAttention::describe() const {
  std::string s = fmt::format("axial_attention {}, {} heads of {}{}", axis == Axis::row ? "row" : "column",
                              heads, head_dim, describe_norm(norm));
  if (qkv_bias) s += ", qkv bias";
  if (!out_bias) s += ", no out bias";
  if (!residual) s += ", no residual";
  if (causal) s += ", causal";
  if (scale != 1 / std::sqrt(static_cast<double>(head_dim))) s += fmt::format(", scale {:g}", scale);
  if (rope) {
    s += fmt::format(", rope {}", rope->style == Rope::Style::half ? "half" : "interleaved");
    if (rope->dims != head_dim) s += fmt::format(" of {}", rope->dims);
    if (rope->theta != Rope{}.theta) s += fmt::format(", theta {:g}", rope->theta);
  }
  return s;
}

std::vector<TensorSpec> AxialAttention::tensors() const {
  std::vector<TensorSpec> list;
  append_norm_tensors(list, norm, dim);
  list.push_back(packed_qkv("weight", inner(), {dim}));
  if (qkv_bias) list.push_back(packed_qkv("bias", inner(), {}));
  list.push_back({"out.weight", {dim, inner()}});
  if (out_bias) list.push_back({"out.bias", {dim}});
  return list;
}

double AxialAttention::flops(const CellShape& input) const {
  const double cells = static_cast<double>(input.rows) * static_cast<double>(input.columns);
  const double d = static_cast<double>(dim), n = static_cast<double>(inner());
  const double l = static_cast<double>(length(input));
  const double projections = 2 * cells * d * 4 * n;  // q, k, v and out
  const double attention = cells * 4 * l * n;        // 4 * L * L * inner for each sequence
  return projections + attention;
}

std::unique_ptr<Layer> parse_axial_attention(Params& params, std::int64_t channels) {
  params.allow({"axis", "heads", "head_dim", "norm", "eps", "qkv_bias", "out_bias", "residual", "scale",
                "causal", "rope"},
               {{"bias", "a score term for each head and key/query pair"},
                {"gate", "the sigmoid gate of the attention output"},
                {"qk_norm", "the norm of each head's q and k"},
                {"tied", "scores summed over the other axis"}});
  auto layer = std::make_unique<AxialAttention>();
  layer->dim = channels;
  layer->axis = params.choice<Axis>("axis", {{"row", Axis::row}, {"column", Axis::column}});
  layer->heads = params.integer("heads");
  layer->head_dim = head_size(params, channels, layer->heads);
  layer->norm = read_norm(params, "norm", true);
  layer->qkv_bias = params.flag("qkv_bias", layer->qkv_bias);
  layer->out_bias = params.flag("out_bias", layer->out_bias);
  layer->residual = params.flag("residual", layer->residual);
  layer->causal = params.flag("causal", layer->causal);
  layer->scale = params.number("scale", {-1e6, 1e6}, 1 / std::sqrt(static_cast<double>(layer->head_dim)));
  layer->rope = parse_rope(params, layer->head_dim);
  return layer;
}

}  // namespace warpweave::graph
