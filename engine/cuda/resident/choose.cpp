#include "cuda/resident/choose.h"

#include <algorithm>

namespace warpweave::cuda::resident {
namespace {

constexpr int kMostDim = 256, kMostHeadDim = 128;
// Up to so many sequences a multiprocessor, the heads of one are spread over warps (docs/resident.md).
constexpr std::int64_t kFewSequences = 8;

std::string of(const char* what, std::int64_t n) { return std::string(what) + " " + std::to_string(n); }

bool fits(const Variant& v, const Gpu& gpu) { return v.shared_bytes <= gpu.shared_memory_per_block; }

// A warp owns a sequence of at most 32 tokens. Empty where its registers or the shared memory do not allow
// it.
std::vector<Variant> by_warp(const Problem& p, std::int64_t length, const Gpu& gpu) {
  const layout::AttentionWeights w = p.weights();
  const int tiles = length <= 16 ? 1 : 2, size = tiles * w.dim_width();
  const bool crowded = p.mask && p.rope_dims > 0;  // needs a few registers more
  if (length > 32 || w.head_width() > 32 || size > 256) return {};
  if (crowded && size > 192 && w.head_width() > 16) return {};
  Variant many{.kind = Variant::Kind::many, .slot = 16 * tiles, .tiles = tiles};
  // 128 registers hold 128 channels of two rows a lane; fewer warps have more.
  const bool small = size <= 128 && w.head_width() <= 16 && !crowded;
  for (many.warps = small ? 16 : 8; many.warps >= 4; many.warps /= 2) {
    finish(p, many);
    if (fits(many, gpu)) break;
  }
  Variant few = many;
  few.kind = Variant::Kind::few;
  few.warps = std::min(p.heads, 8);
  finish(p, few);
  if (!fits(many, gpu) || !fits(few, gpu)) return {};
  return {many, few};
}

int slot_for(std::int64_t length) {
  for (const int slot : {16, 32, 48, 64, 128, 192, 256})
    if (length <= slot) return slot;
  return 0;
}

}  // namespace

Choice choose(const Problem& p, std::int64_t length, const Gpu& gpu) {
  const auto decline = [](std::string reason) { return Choice{std::move(reason), {}}; };
  if (gpu.compute_capability < 80) return decline("it needs compute capability 8.0");
  if (p.dim % 8 != 0) return decline(of("dim", p.dim) + " is not a multiple of 8");
  if (p.dim > kMostDim) return decline(of("dim", p.dim) + " is larger than " + std::to_string(kMostDim));
  if (p.head_dim % 8 != 0) return decline(of("head_dim", p.head_dim) + " is not a multiple of 8");
  if (p.head_dim > kMostHeadDim)
    return decline(of("head_dim", p.head_dim) + " is larger than " + std::to_string(kMostHeadDim));

  if (auto variants = by_warp(p, length, gpu); !variants.empty()) return {{}, std::move(variants)};

  const layout::AttentionWeights w = p.weights();
  const int slot = slot_for(length);
  // Registers: a warp keeps a row of the output for each of its tokens. 16 warps have 128 registers, 12 have
  // 168.
  const int most = w.dim_width() <= 128 ? 256 : w.dim_width() <= 192 && w.head_width() <= 64 ? 192 : 128;
  if (slot == 0 || slot > most)
    return decline("sequences of " + std::to_string(length) + " are longer than the " + std::to_string(most) +
                   " that it keeps on chip at dim " + std::to_string(p.dim));
  Variant v{.kind = Variant::Kind::block, .slot = slot};
  v.wgmma = gpu.compute_capability == 90;
  v.tiles = slot > 192 && w.head_width() > 32 ? 2 : 1;
  v.warps = slot <= 128 ? 8 : slot / (16 * v.tiles);
  int least = 0;
  for (; v.warps >= 4 && v.warps * v.tiles * 16 >= slot; v.warps /= 2) {
    for (v.stages = 2; v.stages >= 1; --v.stages) {
      finish(p, v);
      if (fits(v, gpu)) return {{}, {v}};
      least = v.shared_bytes;
    }
    if (v.warps == 12) break;
  }
  return decline("it needs " + std::to_string((least + 1023) / 1024) +
                 " KiB of shared memory, more than this GPU has (" +
                 std::to_string(gpu.shared_memory_per_block / 1024) + ")");
}

const Variant& pick(const Choice& choice, std::int64_t sequences, int multiprocessors) {
  if (choice.variants.size() < 2) return choice.variants.front();
  return choice.variants[sequences <= kFewSequences * multiprocessors ? 1 : 0];
}

}  // namespace warpweave::cuda::resident
