#include <cstdio>

#include "cuda/resident/problem.h"

namespace warpweave::cuda::resident {
namespace {

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.9e", value);
  return text;
}

}  // namespace

std::string kernel_name(const Variant& v) {
  return v.kind == Variant::Kind::many  ? "resident_many"
         : v.kind == Variant::Kind::few ? "resident_few"
                                        : "resident_block";
}

std::string source(const Problem& p, const Variant& v) {
  std::string text;
  const auto define = [&](const char* name, const std::string& value) {
    text += std::string("#define WW_") + name + " " + value + "\n";
  };
  const auto flag = [&](const char* name, bool value) { define(name, value ? "1" : "0"); };
  const bool head_bias = p.qkv_bias || p.norm == Norm::layer;  // LayerNorm's bias folds into them
  define("TYPE", p.element == Element::bf16 ? "bf16" : "f16");
  define("DIM", std::to_string(p.dim));
  define("HEADS", std::to_string(p.heads));
  define("HEAD_DIM", std::to_string(p.head_dim));
  define("NORM", std::to_string(static_cast<int>(p.norm)));
  define("EPS", number(p.eps) + "f");
  flag("Q_BIAS", head_bias);
  flag("K_BIAS", head_bias && p.rope_dims > 0);
  flag("V_BIAS", head_bias && p.mask);
  flag("OUT_BIAS", p.out_bias || (head_bias && !p.mask));
  flag("RESIDUAL", p.residual);
  flag("CAUSAL", p.causal);
  flag("MASK", p.mask);
  flag("ROPE", p.rope_dims > 0);
  define("SLOT", std::to_string(v.slot));
  define("WARPS", std::to_string(v.warps));
  define("TILES", std::to_string(v.tiles));
  define("STAGES", std::to_string(v.stages));
  flag("WGMMA", v.wgmma);
  text += "#include \"resident/" + kernel_name(v).substr(9) + ".cuh\"\n";
  return text;
}

std::string key(const Problem& p, const Variant& v) {
  std::string text = kernel_name(v).substr(9);
  text += p.element == Element::bf16 ? "_bf16" : "_f16";
  text += "_d" + std::to_string(p.dim) + "_h" + std::to_string(p.heads) + "x" + std::to_string(p.head_dim);
  text += "_n" + std::to_string(static_cast<int>(p.norm)) + "_" + number(p.eps);
  text += std::string("_") + (p.qkv_bias ? "b" : "") + (p.out_bias ? "o" : "") + (p.residual ? "r" : "") +
          (p.causal ? "c" : "") + (p.mask ? "m" : "") + (p.rope_dims ? "p" : "");
  text += "_s" + std::to_string(v.slot) + "w" + std::to_string(v.warps) + "t" + std::to_string(v.tiles);
  if (v.kind == Variant::Kind::block) text += "g" + std::to_string(v.stages) + (v.wgmma ? "w" : "");
  return text;
}

void finish(const Problem& p, Variant& v) {
  const layout::AttentionWeights w = p.weights();
  const int sequence_bytes = v.tiles * 16 * p.dim * 2;
  switch (v.kind) {
    case Variant::Kind::many:
      v.shared_bytes = w.bytes() + v.warps * 2 * sequence_bytes;
      v.sequences_per_block = v.warps;
      break;
    case Variant::Kind::few:
      v.shared_bytes = w.bytes() + v.tiles * 16 * p.heads * w.head_width() * 2;
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
