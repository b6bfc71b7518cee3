#include "cuda/resident/problem.h"

namespace warpweave::cuda::resident {
namespace {

bool head_bias(const Problem& p) { return p.qkv_bias || p.norm == Norm::layer; }  // LayerNorm's bias folds in
bool key_bias(const Problem& p) { return head_bias(p) && p.rope_dims > 0; }
bool value_bias(const Problem& p) { return head_bias(p) && p.mask; }

}  // namespace

std::string kernel_file(const Variant& v) {
  return v.kind == Variant::Kind::block ? "resident/block_kernel.cuh" : "resident/warp_kernels.cuh";
}

std::string kernel_expression(const Problem& p, const Variant& v) {
  std::string flags;
  const auto flag = [&](const char* name, bool on) {
    if (on) flags += (flags.empty() ? "" : "|") + std::string("warpweave::resident::") + name;
  };
  flag("q_bias", head_bias(p));
  flag("k_bias", key_bias(p));
  flag("v_bias", value_bias(p));
  flag("out_bias", p.out_bias || (head_bias(p) && !p.mask));
  flag("residual", p.residual);
  flag("causal", p.causal);
  flag("mask", p.mask);
  flag("rope", p.rope_dims > 0);
  flag("wgmma", v.wgmma);
  if (flags.empty()) flags = "0";
  const char* kernel = v.kind == Variant::Kind::many  ? "many"
                       : v.kind == Variant::Kind::few ? "few"
                                                      : "block";
  const char* norm = p.norm == Norm::layer ? "layer_norm" : p.norm == Norm::rms ? "rms_norm" : "no_norm";
  std::string text = std::string("warpweave::resident_") + kernel + "<warpweave::Spec<warpweave::";
  text += p.element == Element::bf16 ? "bf16" : "f16";
  for (const int n : {p.dim, p.heads, p.head_dim}) text += ", " + std::to_string(n);
  text += std::string(", warpweave::resident::") + norm + ", " + flags;
  for (const int n : {v.slot, v.warps, v.tiles, v.stages}) text += ", " + std::to_string(n);
  return text + ">>";
}

void finish(const Problem& p, Variant& v) {
  const layout::AttentionWeights w = p.weights();
  const int weight_bytes = w.warp_bytes(value_bias(p) ? 3 : key_bias(p) ? 2 : 1);
  const int sequence_bytes = v.tiles * 16 * p.dim * 2,
            output_bytes = v.tiles * 16 * p.heads * w.head_width() * 2;
  switch (v.kind) {
    case Variant::Kind::many:
      v.shared_bytes = weight_bytes + v.warps * (2 * sequence_bytes + output_bytes);
      v.sequences_per_block = v.warps;
      break;
    case Variant::Kind::few:
      v.shared_bytes = weight_bytes + output_bytes;
      v.sequences_per_block = 1;
      break;
    case Variant::Kind::block: {
      const layout::BlockPlan plan{w, v.slot, v.warps, v.tiles, v.stages};
      v.shared_bytes = plan.bytes();
      v.sequences_per_block = plan.sequences();
      break;
    }
  }
}

}  // namespace warpweave::cuda::resident
