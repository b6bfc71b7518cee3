// What the host hands to kernels/long/qkv_attention.cuh, and how it cuts the work. Shared by host and device.
#pragma once

#include "long/attention_params.h"

namespace warpweave::kernels::long_attention {

struct QkvParams {
  TensorMap x;       // (channel, element of a sequence, sequence % inner, sequence / inner) of normalised tokens;
                     // boxes of 64 channels, QkvPlan::slot elements and QkvPlan::sequences() sequences
  TensorMap weight;  // (channel, row of a head, head, q, k or v); boxes of 64 channels, all rows and all three
  const void* bias;  // [3, heads, HEAD]; null: 0
  void* o;           // [token, heads, HEAD]
  Sequences tokens;
  i64 sequences;  // tokens are fewer than 2^24
  int length, heads;
  int chunks;   // of 64 input channels
  float scale;  // of scores; above 0
  float keep;   // the share of o that is to stay in L2, above 0
};

// An item is 128 tokens, whole sequences, and a head.
struct QkvPlan {
  int head;      // elements of a head in memory: a multiple of 16, at most 64
  int slot;      // rows of an item that a sequence has: 16, 32, 64 or 128
  int held = 0;  // chunks of tokens that stay in shared memory for all heads; 0: they come again for each

  static constexpr int kTokens = 128, kGroups = 2, kMostHeld = 6;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8, kLoadRegisters = 24, kComputeRegisters = 240;
  static constexpr int kMostBytes = 227 * 1024;

  WARPWEAVE_BOTH int sequences() const { return kTokens / slot; }
  WARPWEAVE_BOTH int rows() const { return 3 * head; }                // of the weight, of an item
  WARPWEAVE_BOTH int keys() const { return slot > 64 ? 128 : 64; }    // that a score's row has
  // Shared memory, in bytes: tokens that stay; stages of the ring; of each group keys, values (and, in the place of
  // keys, results), and the bias; barriers, a full and a free one of each place, and one of each group's turn. Rows
  // are 128 bytes, swizzled.
  static constexpr int kChunkBytes = kTokens * 128;
  WARPWEAVE_BOTH int weight_at() const { return held ? 0 : kChunkBytes; }  // in a stage
  WARPWEAVE_BOTH int stage_bytes() const { return weight_at() + rows() * 128; }
  WARPWEAVE_BOTH int stages_at() const { return held * kChunkBytes; }
  WARPWEAVE_BOTH int group_bytes() const { return 2 * keys() * 128; }
  WARPWEAVE_BOTH int bias_bytes() const { return rows() * 2; }
  WARPWEAVE_BOTH int stages() const {
    const int left = kMostBytes - 1024 - stages_at() - kGroups * (group_bytes() + bias_bytes());
    return left / stage_bytes() < 8 ? left / stage_bytes() : 8;
  }
  WARPWEAVE_BOTH int groups_at() const { return stages_at() + stages() * stage_bytes(); }
  WARPWEAVE_BOTH int bias_at() const { return groups_at() + kGroups * group_bytes(); }
  WARPWEAVE_BOTH int barriers_at() const { return bias_at() + kGroups * bias_bytes(); }
  WARPWEAVE_BOTH int shared_bytes() const { return barriers_at() + 16 * (stages() + held) + 8 * kGroups; }
};

}  // namespace warpweave::kernels::long_attention
