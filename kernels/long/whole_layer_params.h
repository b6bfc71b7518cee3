// What the host hands to kernels/long/whole_layer.cuh, and how it cuts the work. Shared by host and device.
#pragma once

#include "common/params.h"
#include "long/attention_params.h"

namespace warpweave::kernels::long_sequences {

struct WholeLayerParams {
  const void* x;                        // the grid's first cell
  const void* weights;                  // of q, k and v, WholeLayerPlan
  char* parked;                         // WholeLayerPlan::parked_bytes() for each block
  long_attention::OutputParams output;  // residual: x or null
  Sequences cells;
  int sequences, length;  // length at most WholeLayerPlan::longest()
  float eps;              // of the norm
};

// Heads are 32 channels (padded). A block of four warpgroups owns a sequence and goes from head to head.
struct WholeLayerPlan {
  int dim;    // of a token, 64 or 128
  int heads;  // 2 or 4
  int tiles;  // of 64 tokens for each warpgroup, 1 or 2

  static constexpr int kHead = 32, kGroups = 4, kThreads = 128 * kGroups, kColumns = 3 * kHead, kSlots = 2;
  WARPWEAVE_BOTH int group_tokens() const { return 64 * tiles; }
  WARPWEAVE_BOTH int longest() const { return kGroups * group_tokens(); }

  // Packed weights of q, k and v, a head after another: float32 scale [96] and bias [96], then core matrices
  // of [96, dim] (layout/fragments.h). Their columns are permuted as those of long/project.cuh. Rows: q as it
  // is; k and v so that a lane's accumulators are 8 neighbouring channels.
  WARPWEAVE_BOTH static int scale_at() { return 0; }
  WARPWEAVE_BOTH static int bias_at() { return kColumns * 4; }
  WARPWEAVE_BOTH static int matrix_at() { return kColumns * 8; }
  WARPWEAVE_BOTH int head_bytes() const { return matrix_at() + kColumns * dim * 2; }

  // Shared memory: weights of this head and the next, all of Wout (long_attention::Plan::output_place), K and
  // V of this head and the next, mean and gain of the tokens, barriers.
  WARPWEAVE_BOTH int output_at() const { return (kSlots * head_bytes() + 1023) / 1024 * 1024; }
  WARPWEAVE_BOTH int output_bytes() const {
    return long_attention::Plan::chunks(dim) * (heads / 2) * long_attention::Plan::kPanelBytes;
  }
  WARPWEAVE_BOTH int keys_at() const { return output_at() + output_bytes(); }
  WARPWEAVE_BOTH int matrix_bytes() const { return longest() * kHead * 2; }  // K or V
  WARPWEAVE_BOTH int moments_at() const { return keys_at() + kSlots * 2 * matrix_bytes(); }
  WARPWEAVE_BOTH int barriers_at() const { return moments_at() + longest() * 8; }
  static constexpr int kBarriers = 1 + kSlots * (2 + kGroups);
  WARPWEAVE_BOTH int shared_bytes() const { return barriers_at() + kBarriers * 8; }

  // Results of all heads but the last, in global memory: each thread reads what it wrote.
  WARPWEAVE_BOTH int parked_bytes() const { return (heads - 1) * tiles * 2 * kThreads * 16; }
};

}  // namespace warpweave::kernels::long_sequences
