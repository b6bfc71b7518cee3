// What the host hands to kernels/long/attention.cuh, and how it cuts the work. Shared by host and device.
#pragma once

#include "common/params.h"
#include "layout/portable.h"

namespace warpweave::kernels::long_attention {

// As the driver encodes it (engine/cuda/tensor_map.h).
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

struct Params {
  TensorMap
      qkv;  // (channel of 3 heads HEAD, element of a sequence, sequence % inner, sequence / inner); boxes of
            // Plan::kBoxRows elements and Plan::box_channels() channels, swizzled over the box's rows
  AttentionParams attention;  // without a mask
};

struct Plan {
  int head;             // elements of a head in memory: a multiple of 16, at most 128
  int groups;           // warpgroups that compute, of 64 queries each; one more loads
  int keys;             // of a stage: a multiple of 64
  int stages;           // 3 or more, or 1 where one tile is all
  int blocks;           // of a multiprocessor, that registers are to suffice for
  bool folded = false;  // q comes multiplied by scale log2(e)

  static constexpr int kBoxRows = 64;
  WARPWEAVE_BOTH int box_channels() const { return head <= 16 ? 16 : head <= 32 ? 32 : 64; }
  WARPWEAVE_BOTH int row_bytes() const { return box_channels() * 2; }
  WARPWEAVE_BOTH int panels() const { return (head + box_channels() - 1) / box_channels(); }
  WARPWEAVE_BOTH int tile_bytes(int rows) const { return panels() * rows * row_bytes(); }
  WARPWEAVE_BOTH int queries() const { return groups * 64; }
  WARPWEAVE_BOTH int threads() const { return (groups + 1) * 128; }

  // Registers of a thread: at the launch, and where the warpgroup that loads has given most of its own away.
  static constexpr int kLoadRegisters = 32;
  WARPWEAVE_BOTH int launch_registers() const { return 65536 / (threads() * blocks) / 8 * 8; }
  WARPWEAVE_BOTH int compute_registers() const {
    const int most = (launch_registers() * (groups + 1) - kLoadRegisters) / groups / 8 * 8;
    return most < 240 ? most : 240;
  }

  // Shared memory, in bytes: queries of each group, stages of keys and values, barriers.
  WARPWEAVE_BOTH int stage_bytes() const { return 2 * tile_bytes(keys); }
  WARPWEAVE_BOTH int stages_at() const { return groups * tile_bytes(64); }
  WARPWEAVE_BOTH int barriers_at() const { return stages_at() + stages * stage_bytes(); }
  WARPWEAVE_BOTH int shared_bytes() const { return barriers_at() + 8 * (1 + 4 * stages); }
};

}  // namespace warpweave::kernels::long_attention
