// LayerNorm, RMSNorm, or a plain copy, of DIM channels in registers; the result has zeros from DIM to PITCH.
//
// A group of LANES lanes owns one token and reads it once, 16 bytes at a time where DIM allows. The mean is
// corrected by the mean of the differences from it, so that a mean 1e4 times the spread costs no digits. No shared
// memory. Limit: bytes, one read and one write of the grid.
#pragma once

#include "common/index.cuh"
#include "common/reduce.cuh"
#include "reference/norm.cuh"

namespace warpweave::kernels::composed {

constexpr int kNormWarps = 4;

template <class T, int N>
struct alignas(N * sizeof(T) >= 16 ? 16 : sizeof(T)) Vector {
  T v[N];
};

template <class In, class Out, NormKind KIND, int DIM, int PITCH>
struct NormPlan {
  static constexpr int WIDEST = 16 / sizeof(In);
  static constexpr int VECTOR = DIM % WIDEST == 0 && PITCH % WIDEST == 0 ? WIDEST : 1;
  static constexpr int VECTORS = PITCH / VECTOR;
  static constexpr int LANES =
      VECTORS > 16 ? 32 : VECTORS > 8 ? 16 : VECTORS > 4 ? 8 : VECTORS > 2 ? 4 : VECTORS > 1 ? 2 : 1;
  static constexpr int PER_LANE = (VECTORS + LANES - 1) / LANES;  // vectors
  static constexpr int TOKENS = kNormWarps * 32 / LANES;          // per block
};

template <class In, class Out, NormKind KIND, int DIM, int PITCH>
__global__ void __launch_bounds__(32 * kNormWarps) norm(const NormParams p) {
  using Plan = NormPlan<In, Out, KIND, DIM, PITCH>;
  constexpr int V = Plan::VECTOR, LANES = Plan::LANES, PER = Plan::PER_LANE;
  static_assert(sizeof(In) == sizeof(Out));
  const int lane = threadIdx.x % LANES;
  const i64 token = static_cast<i64>(blockIdx.x) * Plan::TOKENS + threadIdx.x / LANES;
  const bool present = token < p.tokens;  // lanes of absent tokens stay for the sums
  const In* x = static_cast<const In*>(p.x) + (present ? cell_of(p.cells, token) : p.cells.first) * DIM;

  float v[PER][V];
#pragma unroll
  for (int i = 0; i < PER; ++i) {
    const int d = (i * LANES + lane) * V;
    if (d < DIM) {
      const auto chunk = *reinterpret_cast<const Vector<In, V>*>(x + d);
#pragma unroll
      for (int c = 0; c < V; ++c) v[i][c] = to_float(chunk.v[c]);
    } else {
#pragma unroll
      for (int c = 0; c < V; ++c) v[i][c] = 0.0f;
    }
  }

  // Sum over the token of f(v); absent channels do not count.
  const auto total = [&](auto f) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PER; ++i) {
      if ((i * LANES + lane) * V < DIM) {
#pragma unroll
        for (int c = 0; c < V; ++c) sum += f(v[i][c]);
      }
    }
    return sum_lanes<LANES>(sum);
  };

  float mean = 0.0f, gain = 1.0f;
  if constexpr (KIND == NormKind::layer) {
    mean = total([](float a) { return a; }) / DIM;
    mean += total([&](float a) { return a - mean; }) / DIM;
  }
  if constexpr (KIND != NormKind::none) {
    gain = 1.0f / sqrtf(total([&](float a) { return (a - mean) * (a - mean); }) / DIM + p.eps);
  }
  if (!present) return;

  Out* y = static_cast<Out*>(p.y) + token * PITCH;
#pragma unroll
  for (int i = 0; i < PER; ++i) {
    const int d = (i * LANES + lane) * V;
    if (d >= PITCH) continue;
    Vector<Out, V> chunk;
#pragma unroll
    for (int c = 0; c < V; ++c) {
      float r = 0.0f;
      if (d < DIM) {
        r = (v[i][c] - mean) * gain;
        if (p.weight) r *= p.weight[d + c];
        if (p.bias) r += p.bias[d + c];
      }
      chunk.v[c] = from_float<Out>(r);
    }
    *reinterpret_cast<Vector<Out, V>*>(y + d) = chunk;
  }
}

}  // namespace warpweave::kernels::composed
