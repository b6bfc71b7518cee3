// What a resident kernel is told at launch; the rest is compiled in (specification.cuh).
#pragma once

#include "layout/divisor.h"

namespace warpweave {

struct ResidentArguments {
  const void* x;              // grid [.., dim], 16-bit elements, aligned to 16 bytes
  void* y;                    // may be x
  const unsigned char* mask;  // one per cell, non-zero = valid; null unless compiled for masks
  const void* weights;        // layout::AttentionWeights
  const float* rotation;      // (cos, sin) [length][head_width / 2]; null unless compiled for RoPE
  // Cell (token t of sequence s) = s / per_sample * sample_cells + s % per_sample * sequence_cells + t *
  // token_cells.
  long long sample_cells, sequence_cells, token_cells;
  unsigned int per_sample, sequences;  // sequences of a sample, and of the whole launch (at most 2^30)
  int length;                          // tokens of a sequence, 1 .. Spec::slot
  float eps;                           // of the norm
  layout::Divisor by_sample;           // of per_sample
};

}  // namespace warpweave
