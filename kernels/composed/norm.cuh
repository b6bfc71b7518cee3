// LayerNorm, RMSNorm, or a plain copy, of DIM channels in registers; the result has zeros from DIM to PITCH.
//
// A group of LANES lanes owns one token at a time and reads it once, 16 bytes a lane where DIM allows, the next
// token's while it works on this one; weights stay in registers where there is room. The mean is subtracted twice,
// so that one of 1e4 times the spread costs no digits. No shared memory. Limit: bytes, one read and one write of the
// grid.
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

// How channels d .. d + V of a token are written; other types of operand have their own.
template <class Out, int PITCH>
struct Row {
  template <int V>
  static __device__ __forceinline__ void store(void* y, i64 token, int d, const float (&values)[V]) {
    Vector<Out, V> result;
#pragma unroll
    for (int c = 0; c < V; ++c) result.v[c] = from_float<Out>(values[c]);
    *reinterpret_cast<Vector<Out, V>*>(static_cast<Out*>(y) + token * PITCH + d) = result;
  }
};

template <class In, class Out, NormKind KIND, int DIM, int PITCH>
struct Norm {
  static constexpr int WIDEST = 16 / sizeof(In);
  static constexpr int V = DIM % WIDEST == 0 && PITCH % WIDEST == 0 ? WIDEST : 1;  // elements of a vector
  static constexpr int VECTORS = PITCH / V;
  static constexpr int LANES =
      VECTORS > 16 ? 32 : VECTORS > 8 ? 16 : VECTORS > 4 ? 8 : VECTORS > 2 ? 4 : VECTORS > 1 ? 2 : 1;
  static constexpr int PER = (VECTORS + LANES - 1) / LANES;    // vectors of a lane
  static constexpr int TOKENS = kNormWarps * 32 / LANES;       // of a block at a time
  static constexpr bool RESIDENT = KIND != NormKind::none && PER * V <= 16;  // weights stay in registers
  using Chunk = Vector<In, V>;

  const NormParams& p;
  const int lane;

  // First channel of vector i of this lane.
  __device__ __forceinline__ int channel(int i) const { return (i * LANES + lane) * V; }

  __device__ __forceinline__ void load(Chunk (&x)[PER], i64 token) const {
    const In* from = static_cast<const In*>(p.x) + cell_of(p.cells, token) * DIM;
#pragma unroll
    for (int i = 0; i < PER; ++i) {
      if (channel(i) < DIM) x[i] = *reinterpret_cast<const Chunk*>(from + channel(i));
    }
  }

  __device__ __forceinline__ void load_weights(float (&weight)[V], float (&bias)[V], int i) const {
#pragma unroll
    for (int c = 0; c < V; ++c) {
      const bool present = channel(i) < DIM;
      weight[c] = present && p.weight ? p.weight[channel(i) + c] : 1.0f;
      bias[c] = present && p.bias ? p.bias[channel(i) + c] : 0.0f;
    }
  }

  // Sum over the token of f(v); absent channels do not count.
  template <class F>
  __device__ __forceinline__ float total(const float (&v)[PER][V], F f) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PER; ++i) {
      if (channel(i) < DIM) {
#pragma unroll
        for (int c = 0; c < V; ++c) sum += f(v[i][c]);
      }
    }
    return sum_lanes<LANES>(sum);
  }

  __device__ __forceinline__ void center(float (&v)[PER][V]) const {
    const float mean = total(v, [](float a) { return a; }) / DIM;
#pragma unroll
    for (int i = 0; i < PER; ++i) {
#pragma unroll
      for (int c = 0; c < V; ++c) v[i][c] -= mean;
    }
  }

  __device__ __forceinline__ void run() const {
    float weight[RESIDENT ? PER : 1][V], bias[RESIDENT ? PER : 1][V];
    if constexpr (RESIDENT) {
#pragma unroll
      for (int i = 0; i < PER; ++i) load_weights(weight[i], bias[i], i);
    }
    // Groups of a warp stay together for the sums, so the last tokens are done by some twice.
    const i64 last = p.tokens - 1, stride = static_cast<i64>(gridDim.x) * TOKENS;
    const i64 begin = static_cast<i64>(blockIdx.x) * TOKENS;
    Chunk next[PER];
    load(next, min(begin + threadIdx.x / LANES, last));
    for (i64 base = begin; base < p.tokens; base += stride) {
      const i64 token = min(base + threadIdx.x / LANES, last);
      Chunk x[PER];
#pragma unroll
      for (int i = 0; i < PER; ++i) x[i] = next[i];
      if (base + stride < p.tokens) load(next, min(base + stride + threadIdx.x / LANES, last));

      float v[PER][V];
#pragma unroll
      for (int i = 0; i < PER; ++i) {
#pragma unroll
        for (int c = 0; c < V; ++c) v[i][c] = channel(i) < DIM ? to_float(x[i].v[c]) : 0.0f;
      }
      if constexpr (KIND == NormKind::layer) {
        center(v);
        center(v);
      }
      float gain = 1.0f;
      if constexpr (KIND != NormKind::none) {
        gain = 1.0f / sqrtf(total(v, [](float a) { return a * a; }) / DIM + p.eps);
      }

      In* copy = p.copy ? static_cast<In*>(p.copy) + cell_of(p.cells, token) * DIM : nullptr;
#pragma unroll
      for (int i = 0; i < PER; ++i) {
        const int d = channel(i);
        if (d >= PITCH) continue;
        if constexpr (!RESIDENT) load_weights(weight[0], bias[0], i);
        float result[V];
#pragma unroll
        for (int c = 0; c < V; ++c) {
          const int w = RESIDENT ? i : 0;
          result[c] = d < DIM ? v[i][c] * gain * weight[w][c] + bias[w][c] : 0.0f;
        }
        Row<Out, PITCH>::store(p.y, token, d, result);
        if (copy && d < DIM) *reinterpret_cast<Chunk*>(copy + d) = x[i];
      }
    }
  }
};

template <class In, class Out, NormKind KIND, int DIM, int PITCH>
__global__ void __launch_bounds__(32 * kNormWarps, Norm<In, Out, KIND, DIM, PITCH>::PER > 2 ? 2 : 6) norm(const NormParams p) {
  using Tokens = Norm<In, Out, KIND, DIM, PITCH>;
  Tokens{p, static_cast<int>(threadIdx.x % Tokens::LANES)}.run();
}

}  // namespace warpweave::kernels::composed
