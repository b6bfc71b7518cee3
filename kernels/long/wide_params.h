// What the host hands to kernels/long/wide_store.cuh and wide_attention.cuh, and how it cuts the work. Shared
// by host and device.
#pragma once

#include "layout/divisor.h"
#include "long/attention_params.h"

namespace warpweave::kernels::long_attention {

// A token's result is gain unit x W^T + bias. Where there is a norm, it is folded into W, gain is one over
// the token's deviation, and rows of W sum up to zero, to the last bit, where the norm takes a token's mean
// away.
struct WideParams {
  // (channel, element of a sequence, sequence % inner, sequence / inner) of tokens as they are; boxes of 64
  // channels and as many elements and sequences as an item has.
  TensorMap x;
  // With attention: (channel, row of a head, head, q, k or v), boxes of 64 channels, all rows and all three.
  // Else (channel, row), boxes of 64 channels and WidePlan::rows() rows.
  TensorMap weight;
  // (row of W, or channel of the heads' results, element, sequence % inner, sequence / inner); boxes of
  // WidePlan::head channels and 16 tokens.
  TensorMap out;
  const float* bias;   // [rows]
  const float* gains;  // [token], found ahead (composed/norm.cuh); null: no norm
  Sequences tokens;    // dense, at most 2^24
  int length;
  int inner;    // sequences in a row
  int items;    // below 2^30
  int columns;  // items of the same tokens: heads, or parts of the rows
  int along;    // items of a sequence
  int across;   // items of the sequences in a row
  layout::Divisor by_columns, by_along, by_across;
  int rows;  // of the weight, all
  int dim;   // channels of a token
  // Without attention: an item has 2^slot_bits elements of each of 128 / 2^slot_bits sequences.
  int slot_bits;
  float unit;   // a power of two that was taken out of the weights
  float scale;  // of scores; above 0
  float keep;   // the share of the result that is to stay in L2, above 0
};

// An item is 128 tokens by 3 HEAD columns: with attention whole sequences and a head.
struct WidePlan {
  int head;  // a third of the columns, a multiple of 16, at most 64
  int slot;  // with attention, rows of an item that a sequence has: 16, 32, 64 or 128; else 0

  static constexpr int kTokens = 128, kGroups = 2;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr int kLoadRegisters = 24, kComputeRegisters = 240;
  static constexpr int kMostBytes = 227 * 1024;
  static constexpr int kChunkBytes = kTokens * 128;

  WARPWEAVE_BOTH int rows() const { return 3 * head; }  // of the weight, of an item
  WARPWEAVE_BOTH int sequences() const { return kTokens / slot; }
  // Shared memory, in bytes: stages of the ring, each a chunk of tokens and one of the weights; of each group
  // keys and values (in the place of keys results), or results; its bias; barriers, a full and a free one of
  // each stage, one of each group's turn. Rows are 128 bytes, swizzled.
  WARPWEAVE_BOTH int stage_bytes() const { return kChunkBytes + rows() * 128; }
  WARPWEAVE_BOTH int group_bytes() const { return slot ? 2 * kTokens * 128 : 3 * 64 * 128; }
  WARPWEAVE_BOTH int bias_bytes() const { return rows() * 4; }
  WARPWEAVE_BOTH int stages() const {
    return (kMostBytes - 256 - kGroups * (group_bytes() + bias_bytes())) / stage_bytes();
  }
  WARPWEAVE_BOTH int groups_at() const { return stages() * stage_bytes(); }
  WARPWEAVE_BOTH int bias_at() const { return groups_at() + kGroups * group_bytes(); }
  WARPWEAVE_BOTH int barriers_at() const { return bias_at() + kGroups * bias_bytes(); }
  WARPWEAVE_BOTH int shared_bytes() const { return barriers_at() + 16 * stages() + 8 * kGroups; }
};

}  // namespace warpweave::kernels::long_attention
