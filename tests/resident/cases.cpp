// The specialisations that resident_harness knows, and the shapes of the table.
#include <cmath>
#include <random>

#include "harness.h"

namespace warpweave::cuda::resident {
namespace {

using Kind = Variant::Kind;

Case make_case(std::string name, int dim, int heads, int head_dim, Variant v, Element e = Element::bf16) {
  Case c;
  c.name = std::move(name);
  c.problem.dim = dim, c.problem.heads = heads, c.problem.head_dim = head_dim, c.problem.element = e;
  c.problem.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  c.variant = v;
  finish(c.problem, c.variant);
  return c;
}

}  // namespace

std::vector<Case> all_cases() {
  std::vector<Case> list;
  const auto add = [&](const std::string& name, int dim, int heads, int head_dim, Variant v) {
    list.push_back(make_case(name, dim, heads, head_dim, v));
    list.push_back(make_case(name + "_f16", dim, heads, head_dim, v, Element::f16));
  };
  add("seed_many8x2", 64, 4, 16, {.kind = Kind::many, .slot = 32, .warps = 8, .tiles = 2, .stages = 2});
  add("seed_many16", 64, 4, 16, {.kind = Kind::many, .slot = 32, .warps = 16, .tiles = 2});
  add("seed_few4", 64, 4, 16, {.kind = Kind::few, .slot = 32, .warps = 4, .tiles = 2});
  add("image64", 256, 8, 32,
      {.kind = Kind::block, .slot = 64, .warps = 8, .tiles = 1, .stages = 2, .wgmma = true});
  add("image64_mma", 256, 8, 32, {.kind = Kind::block, .slot = 64, .warps = 8, .tiles = 1, .stages = 2});
  add("pair256", 128, 4, 32,
      {.kind = Kind::block, .slot = 256, .warps = 16, .tiles = 1, .stages = 2, .wgmma = true});
  add("pair256_w8", 128, 4, 32,
      {.kind = Kind::block, .slot = 256, .warps = 8, .tiles = 2, .stages = 2, .wgmma = true});
  add("pair256_mma", 128, 4, 32, {.kind = Kind::block, .slot = 256, .warps = 16, .tiles = 1, .stages = 2});

  // Scores beyond what a softmax without the maximum can hold.
  for (const Element e : {Element::bf16, Element::f16}) {
    const std::string suffix = e == Element::bf16 ? "" : "_f16";
    for (Case c :
         {make_case("hot_many" + suffix, 48, 3, 16, {.kind = Kind::many, .slot = 32, .warps = 4, .tiles = 2},
                    e),
          make_case("hot_few" + suffix, 48, 3, 16, {.kind = Kind::few, .slot = 32, .warps = 3, .tiles = 2},
                    e),
          make_case("hot_block" + suffix, 64, 2, 32,
                    {.kind = Kind::block, .slot = 128, .warps = 8, .tiles = 1, .stages = 2, .wgmma = true},
                    e),
          make_case("hot_mma" + suffix, 64, 2, 32,
                    {.kind = Kind::block, .slot = 64, .warps = 8, .tiles = 1, .stages = 2}, e)}) {
      c.problem.scale = e == Element::bf16 ? 16 : 8;
      list.push_back(c);
    }
  }

  // Options, drawn once from a fixed generator; what runs them is chosen as for three GPUs. Many problems are
  // run with each.
  std::mt19937 r(7);
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(r() % static_cast<unsigned>(hi - lo + 1));
  };
  const int dims[] = {8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 128, 136, 160, 192, 256};
  const Gpu gpus[] = {{90, 232448}, {90, 232448}, {80, 166912}, {89, 101376}};
  for (int i = 0; i < 46; ++i) {
    Problem p;
    p.dim = dims[pick(0, 14)];
    p.head_dim = 8 * pick(1, i % 3 == 0 ? 16 : 4);
    p.heads = pick(1, 5);
    p.element = r() & 1 ? Element::bf16 : Element::f16;
    p.norm = static_cast<Norm>(pick(0, 2));
    p.eps = r() & 1 ? 1e-5 : 1e-3;
    p.scale = (r() & 1 ? 1.0 : 0.7) / std::sqrt(static_cast<double>(p.head_dim));
    p.qkv_bias = r() & 1, p.out_bias = r() & 1, p.residual = r() % 3 != 0, p.causal = r() % 3 == 0;
    p.mask = r() & 1;
    if (r() & 1) {
      p.rope_dims = 2 * pick(1, p.head_dim / 2), p.rope_half = r() & 1;
      p.rope_theta = r() & 1 ? 10000 : 100;
    }
    const Choice choice = choose(p, i % 2 ? pick(1, 32) : pick(33, 256), gpus[i % 4]);
    for (const Variant& v : choice.variants)
      list.push_back({"r" + std::to_string(i) +
                          (v.kind == Kind::many  ? "_many"
                           : v.kind == Kind::few ? "_few"
                                                 : "_block") +
                          "_d" + std::to_string(p.dim) + "_h" + std::to_string(p.heads) + "x" +
                          std::to_string(p.head_dim) + "_s" + std::to_string(v.slot) + (v.wgmma ? "w" : ""),
                      p, v});
  }
  return list;
}

std::vector<Shape> shapes() {
  return {
      {"seed", 4, 32, 32, {"seed_few4", "seed_few4_f16"}},
      {"seed_b16", 16, 32, 32, {"seed_few4", "seed_many16"}},
      {"seed_b32", 32, 32, 32, {"seed_few4", "seed_many16"}},
      {"seed_b256", 256, 32, 32, {"seed_many8x2", "seed_many16", "seed_many16_f16"}},
      {"image64", 8, 64, 64, {"image64", "image64_f16", "image64_mma"}},
      {"pair256", 1, 256, 256, {"pair256", "pair256_f16", "pair256_w8", "pair256_mma"}},
  };
}

std::vector<Case> widest_cases(int capability) {
  std::vector<Case> list;
  const Gpu gpu{capability, capability == 90 || capability == 100 ? 232448
                            : capability == 80                    ? 166912
                                                                  : 101376};
  for (const int length : {16, 32, 48, 64, 128, 192, 256})
    for (const int dim : {64, 128, 192, 256})
      for (const int head_dim : {16, 32, 64, 128})
        for (const bool options : {false, true}) {
          Problem p{.dim = dim, .heads = 2, .head_dim = head_dim, .scale = 1};
          if (options) p.qkv_bias = p.causal = p.mask = true, p.rope_dims = head_dim;
          for (const Variant& v : choose(p, length, gpu).variants)
            list.push_back({"L" + std::to_string(length) + "_d" + std::to_string(dim) + "x" +
                                std::to_string(head_dim) + (options ? "_options" : "") + "_w" +
                                std::to_string(v.warps) + "t" + std::to_string(v.tiles),
                            p, v});
        }
  return list;
}

}  // namespace warpweave::cuda::resident
