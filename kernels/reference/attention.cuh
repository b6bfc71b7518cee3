// Attention along rows or columns, the plain way: o = softmax(scale * q k^T) v for each sequence and head.
//
//   qkv [token, (q heads, k heads, v heads), HEAD_DIM], o [token, heads, HEAD_DIM]
//
// A warp owns one query of one head. It takes keys 32 at a time, one per lane for the scores; then each lane owns
// channels lane, lane + 32, ... of the output and walks over the 32 keys. The maximum is subtracted as it grows
// (Milakov and Gimelshein 2018). Masked keys are skipped, not multiplied by zero, so that nothing of them spreads.
// Probabilities are rounded to T, as tensor cores take them; their sum is not. Shared memory: the query.
#pragma once

#include "common/index.cuh"
#include "common/reduce.cuh"
#include "ptx/math.cuh"

namespace warpweave::kernels::reference {

constexpr int kAttentionWarps = 4;

template <class T, int HEAD_DIM, bool CAUSAL>
__global__ void __launch_bounds__(32 * kAttentionWarps, 4) attention(const AttentionParams p) {
  constexpr int CHANNELS = (HEAD_DIM + 31) / 32;  // per lane
  const float NONE = minus_infinity();
  __shared__ float queries[kAttentionWarps][HEAD_DIM];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* query = queries[warp];
  const i64 row = 3 * p.heads * HEAD_DIM, work = p.sequences * p.heads * p.length;

  for (i64 item = static_cast<i64>(blockIdx.x) * kAttentionWarps + warp; item < work;
       item += static_cast<i64>(gridDim.x) * kAttentionWarps) {
    const i64 i = item % p.length, head = item / p.length % p.heads, sequence = item / (p.length * p.heads);
    const i64 start = sequence_start(p.tokens, sequence);
    const i64 mask_start = sequence_start(p.mask_cells, sequence);
    const T* q = static_cast<const T*>(p.qkv) + (start + i * p.tokens.step) * row + head * HEAD_DIM;
    const T* keys = static_cast<const T*>(p.qkv) + start * row + (p.heads + head) * HEAD_DIM;
    const T* values = keys + p.heads * HEAD_DIM;

    __syncwarp();
    for (int d = lane; d < HEAD_DIM; d += 32) query[d] = to_float(q[d]);
    __syncwarp();

    float out[CHANNELS] = {};
    float top = NONE, total = 0.0f;
    const i64 end = CAUSAL ? i + 1 : p.length;
    for (i64 j0 = 0; j0 < end; j0 += 32) {
      const i64 j = j0 + lane;
      const bool valid = j < end && (!p.mask || p.mask[mask_start + j * p.mask_cells.step]);
      float score = NONE;
      if (valid) {
        const T* key = keys + j * p.tokens.step * row;
        score = 0.0f;
#pragma unroll 4
        for (int d = 0; d < HEAD_DIM; ++d) score += query[d] * to_float(key[d]);
        score *= p.scale;
      }
      const unsigned valid_lanes = __ballot_sync(0xffffffffu, valid);
      if (!valid_lanes) continue;
      const float new_top = fmaxf(top, max_lanes(score));
      const float shrink = top == NONE ? 0.0f : expf(top - new_top);
      const float weight = valid ? expf(score - new_top) : 0.0f;
      top = new_top;
      total = total * shrink + sum_lanes(weight);
      for (int c = 0; c < CHANNELS; ++c) out[c] *= shrink;
#pragma unroll 1
      for (int n = 0; n < 32; ++n) {
        const float w = rounded<T>(__shfl_sync(0xffffffffu, weight, n));
        if (!(valid_lanes >> n & 1)) continue;
        const T* value = values + (j0 + n) * p.tokens.step * row;
        for (int c = 0; c < CHANNELS; ++c) {
          if (c * 32 + lane < HEAD_DIM) out[c] += w * to_float(value[c * 32 + lane]);
        }
      }
    }
    T* o = static_cast<T*>(p.o) + ((start + i * p.tokens.step) * p.heads + head) * HEAD_DIM;
    for (int c = 0; c < CHANNELS; ++c) {
      if (c * 32 + lane < HEAD_DIM) o[c * 32 + lane] = from_float<T>(total > 0.0f ? out[c] / total : total);
    }
  }
}

}  // namespace warpweave::kernels::reference
