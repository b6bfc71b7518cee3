// What the host hands to kernels/long/attention.cuh, and how it cuts the work. Shared by host and device.
#pragma once

#include "common/params.h"
#include "layout/portable.h"

namespace warpweave::kernels::long_attention {

// As the driver encodes it (engine/cuda/tensor_map.h).
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

// The output projection, for a kernel that ends with it: y = residual + scale o W^T + bias.
struct OutputParams {
  const void* residual;  // [cell, dim], may be y; null: none
  void* y;               // [cell, dim]
  const void* weights;   // Plan::kChunk output channels after another, each in panels (output_place)
  const float* scale;    // [dim], powers of two taken out of fp16 weights; not read in bf16
  const float* bias;     // [dim]; null: none
  int dim;               // a multiple of 8
};

struct Params {
  TensorMap qkv;  // (channel of 3 heads HEAD, element of a sequence, sequence % inner, sequence / inner);
                  // boxes of Plan::kBoxRows elements and Plan::box_channels() channels, swizzled over rows of
                  // Plan::row_bytes() in shared memory
  AttentionParams attention;  // without a mask; with an output projection mask_cells is where y's cells are
  OutputParams output;
  float keep;  // the share of o that is to stay in L2
  int once;    // whether q, k and v are read by one item each and may leave L2
  i64 tiles;   // of 64 queries of a sequence and, where there is no output projection, a head; below 2^31
};

struct Plan {
  int head;        // elements of a head in memory: a multiple of 16, at most 128
  int groups;      // warpgroups that compute, of 64 queries each; one more loads
  int keys;        // of a stage: a multiple of 64
  int stages;      // 2 or more, and no fewer than groups
  int blocks;      // of a multiprocessor, that registers are to suffice for
  int panels = 0;  // of 64 channels of all heads together where the kernel ends with the output projection
  bool folded = false;  // q comes multiplied by scale log2(e)
  // The first tile of keys has half of them, and the others follow: where the last one would have no more
  // than half, and is not the first. Not where causal, nor with the output projection.
  bool short_start = false;

  static constexpr int kBoxRows = 64;
  // As many channels as a head has, in rows as wide as a swizzle.
  WARPWEAVE_BOTH int box_channels() const { return head <= 16 ? 16 : head <= 32 ? 32 : head == 48 ? 48 : 64; }
  WARPWEAVE_BOTH int row_bytes() const { return head <= 16 ? 32 : head <= 32 ? 64 : 128; }
  WARPWEAVE_BOTH int head_panels() const { return (head + box_channels() - 1) / box_channels(); }
  WARPWEAVE_BOTH int tile_bytes(int rows) const { return head_panels() * rows * row_bytes(); }
  WARPWEAVE_BOTH int copied_bytes(int rows) const { return head_panels() * rows * box_channels() * 2; }
  WARPWEAVE_BOTH int first_keys() const { return short_start ? keys / 2 : keys; }
  WARPWEAVE_BOTH int threads() const { return (groups + 1) * 128; }
  WARPWEAVE_BOTH static i64 query_tiles(i64 length) { return (length + 63) / 64; }

  // Registers of a thread: at the launch, and where the warpgroup that loads has given most of its own away.
  static constexpr int kLoadRegisters = 32;
  WARPWEAVE_BOTH int launch_registers() const { return 65536 / (threads() * blocks) / 8 * 8; }
  WARPWEAVE_BOTH int compute_registers() const {
    const int most = (launch_registers() * (groups + 1) - kLoadRegisters) / groups / 8 * 8;
    return most < 240 ? most : 240;
  }

  // Shared memory, in bytes: two places for queries of each group, of a head and of the next; stages of keys
  // and values; results of all heads (for the output projection); barriers, a full and a free one for each
  // place, each stage's keys and its values; a word for each item of the block; how far its items are apart;
  // where keys and values of an item's streams are.
  static constexpr int kPlaces = 2;
  static constexpr int kPanelBytes = 64 * 128;  // 64 rows of 64 channels
  static constexpr int kMostItems = 64;         // of a block
  WARPWEAVE_BOTH int query_bytes() const { return tile_bytes(64); }
  WARPWEAVE_BOTH int stages_at() const { return kPlaces * groups * query_bytes(); }
  WARPWEAVE_BOTH int stage_bytes() const { return 2 * tile_bytes(keys); }
  WARPWEAVE_BOTH int results_at() const { return stages_at() + stages * stage_bytes(); }
  WARPWEAVE_BOTH int barriers_at() const { return results_at() + groups * panels * kPanelBytes; }
  WARPWEAVE_BOTH int verdicts_at() const { return barriers_at() + 16 * (kPlaces * groups + 2 * stages); }
  WARPWEAVE_BOTH int step_at() const { return verdicts_at() + 4 * kMostItems; }
  WARPWEAVE_BOTH int sources_at() const { return step_at() + 16; }
  WARPWEAVE_BOTH int shared_bytes() const { return sources_at() + 2 * 16 * groups; }

  // The packed weight of the output projection: 64 output channels after another (zeros behind the last),
  // each as `panels` of 64 rows and 64 columns, rows swizzled over 128 bytes as the copy engine does. 32 rows
  // at a time are permuted so that a lane's accumulators are 8 neighbouring output channels.
  static constexpr int kChunk = 64;
  WARPWEAVE_BOTH static int chunks(int dim) { return (dim + kChunk - 1) / kChunk; }
  // Element of the packed weight where W[n, k] goes.
  WARPWEAVE_BOTH int output_place(int n, int k) const {
    const int c = n % 32, row = n % 64 / 32 * 32 + c % 8 / 2 * 8 + c / 8 * 2 + c % 2;
    return (n / 64 * panels + k / 64) * (kPanelBytes / 2) + row * 64 + ((k % 64 / 8) ^ (row % 8)) * 8 + k % 8;
  }
};

}  // namespace warpweave::kernels::long_attention
