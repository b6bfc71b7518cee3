// LayerNorm, RMSNorm, or a plain copy, of DIM channels in registers; the result has zeros from DIM to PITCH.
//
// A group of lanes takes several tokens at a time and reads each once, 16 bytes a lane where DIM allows: enough bytes under
// way to keep memory busy, and weights are loaded once for all of them. A token stays in registers as it was
// read and is widened in every pass. The mean is subtracted twice, so that one of 1e4 times the spread costs no
// digits. No shared memory. The last tokens come first: what wrote them left them in L2, and the first ones are there for
// what reads the result. Limit: bytes, one read and one write of the grid.
#pragma once

#include "common/index.cuh"
#include "layout/norm_plan.h"
#include "ptx/copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/l2.cuh"
#include "reference/norm.cuh"

namespace warpweave::kernels::composed {

template <class T, int N>
struct alignas(N * sizeof(T) >= 16 ? 16 : sizeof(T)) Vector {
  T v[N];
};

// How channels d .. d + V of a token are written; other types of operand have their own.
template <class Out, int PITCH>
struct Row {
  template <int V>
  static __device__ __forceinline__ void store(void* y, i64 token, int d, const float (&values)[V], u64 policy) {
    Vector<Out, V> result;
#pragma unroll
    for (int c = 0; c < V; ++c) result.v[c] = from_float<Out>(values[c]);
    Out* const to = static_cast<Out*>(y) + token * PITCH + d;
    if constexpr (sizeof result == 16) {
      u32 w[4];
      memcpy(w, &result, 16);
      store_global(to, w[0], w[1], w[2], w[3], policy);
    } else {
      *reinterpret_cast<Vector<Out, V>*>(to) = result;
    }
  }
};

template <class In, class Out, NormKind KIND, int DIM, int PITCH>
struct Norm {
  static constexpr layout::NormPlan PLAN{DIM, PITCH, sizeof(In)};
  static constexpr int V = PLAN.vector(), LANES = PLAN.lanes(), PER = PLAN.per_lane();
  static constexpr int T = PLAN.together(), ABREAST = PLAN.abreast(), TOKENS = PLAN.tokens();
  using Chunk = Vector<In, V>;

  const NormParams& p;
  const int lane;

  // First channel of vector i of this lane, and whether the token has it.
  __device__ __forceinline__ int channel(int i) const { return (i * LANES + lane) * V; }
  __device__ __forceinline__ bool present(int i) const {
    return (i + 1) * LANES * V <= DIM || channel(i) < DIM;
  }

  __device__ __forceinline__ void load(Chunk (&x)[PER], i64 cell) const {
    const In* from = static_cast<const In*>(p.x) + cell * DIM;
#pragma unroll
    for (int i = 0; i < PER; ++i) {
      if (present(i)) x[i] = *reinterpret_cast<const Chunk*>(from + channel(i));
    }
  }

  __device__ __forceinline__ void load_weights(float (&to)[V], const float* from, float absent, int i) const {
    if (from && present(i)) {
      const auto loaded = *reinterpret_cast<const Vector<float, V>*>(from + channel(i));
#pragma unroll
      for (int c = 0; c < V; ++c) to[c] = loaded.v[c];
    } else {
#pragma unroll
      for (int c = 0; c < V; ++c) to[c] = absent;
    }
  }

  // sums[t] = sum over token t of f(value, t).
  template <class F>
  __device__ __forceinline__ void total(float (&sums)[T], const Chunk (&x)[T][PER], F f) const {
#pragma unroll
    for (int t = 0; t < T; ++t) {
      sums[t] = 0.0f;
#pragma unroll
      for (int i = 0; i < PER; ++i) {
        if (present(i)) {
#pragma unroll
          for (int c = 0; c < V; ++c) sums[t] += f(to_float(x[t][i].v[c]), t);
        }
      }
    }
#pragma unroll
    for (int d = LANES / 2; d > 0; d /= 2) {
#pragma unroll
      for (int t = 0; t < T; ++t) sums[t] += __shfl_xor_sync(0xffffffffu, sums[t], d);
    }
  }

  // GAINS: of each token the gain, one over its deviation, is written, as float32, instead of the result: zero where all
  // channels are the same, whose differences to the mean are zero whatever the gain. (In 16 bits others are at least 2^-17
  // of their mean apart.)
  template <bool GAINS>
  __device__ __forceinline__ void run() const {
    // Lanes of a warp stay together for the sums, so some work on the last token as well; one of them writes it, since
    // y may be x.
    const i64 last = p.tokens - 1;
    const u64 policy = keep_in_l2(p.keep);
    for (i64 tile = last / TOKENS - blockIdx.x; tile >= 0; tile -= gridDim.x) {
      const i64 base = tile * TOKENS;
      const auto place = [&](int t) { return base + t * ABREAST + threadIdx.x / LANES; };
      const auto token = [&](int t) { return min(place(t), last); };
      Chunk x[T][PER];
#pragma unroll
      for (int t = 0; t < T; ++t) load(x[t], cell_of(p.cells, token(t)));

      float mean[T] = {}, left[T] = {}, spread[T] = {}, gain[T];  // spread: variance
      const auto centred = [&](float v, int t) { return KIND == NormKind::layer ? v - mean[t] - left[t] : v; };
      if constexpr (KIND == NormKind::layer) {
        total(mean, x, [](float v, int) { return v; });
#pragma unroll
        for (int t = 0; t < T; ++t) mean[t] /= DIM;
        float rest[T];
        total(rest, x, centred);
#pragma unroll
        for (int t = 0; t < T; ++t) left[t] = rest[t] / DIM;
      }
      if constexpr (KIND == NormKind::none) {
#pragma unroll
        for (int t = 0; t < T; ++t) gain[t] = 1.0f;
      } else {
        total(gain, x, [&](float v, int t) { return centred(v, t) * centred(v, t); });
#pragma unroll
        for (int t = 0; t < T; ++t) {
          spread[t] = gain[t] / DIM;
          gain[t] = 1.0f / sqrtf(spread[t] + p.eps);
        }
      }

      if constexpr (GAINS) {
#pragma unroll
        for (int t = 0; t < T; ++t) {
          const float least = (mean[t] + left[t]) * 0x1p-20f;
          const bool same = KIND == NormKind::layer && spread[t] <= least * least;
          if (lane == 0 && place(t) <= last) static_cast<float*>(p.y)[place(t)] = same ? 0.0f : gain[t];
        }
      }
#pragma unroll
      for (int i = 0; i < (GAINS ? 0 : PER); ++i) {
        const int d = channel(i);
        if (d >= PITCH) continue;
        float weight[V], bias[V];
        load_weights(weight, p.weight, 1.0f, i);
        load_weights(bias, p.bias, 0.0f, i);
#pragma unroll
        for (int t = 0; t < T; ++t) {
          float result[V];
#pragma unroll
          for (int c = 0; c < V; ++c) {
            result[c] = present(i) ? centred(to_float(x[t][i].v[c]), t) * gain[t] * weight[c] + bias[c] : 0.0f;
          }
          if (place(t) <= last) Row<Out, PITCH>::store(p.y, place(t), d, result, policy);
        }
      }
      if (p.copy) copy(x, place, last);
    }
  }

  template <class Place>
  __device__ __forceinline__ void copy(const Chunk (&x)[T][PER], Place place, i64 last) const {
#pragma unroll
    for (int t = 0; t < T; ++t) {
      if (place(t) > last) continue;
      In* const to = static_cast<In*>(p.copy) + cell_of(p.cells, place(t)) * DIM;
#pragma unroll
      for (int i = 0; i < PER; ++i) {
        if (present(i)) *reinterpret_cast<Chunk*>(to + channel(i)) = x[t][i];
      }
    }
  }
};

// As many blocks of a multiprocessor as registers suffice for without spills.
template <class In, class Out, NormKind KIND, int DIM, int PITCH>
__global__ void __launch_bounds__(32 * layout::NormPlan::warps, DIM > 1024 ? 3 : DIM > 768 ? 5 : 6) norm(const NormParams p) {
  using Tokens = Norm<In, Out, KIND, DIM, PITCH>;
  wait_for_previous_grid();
  let_next_grid_start();
  Tokens{p, static_cast<int>(threadIdx.x % Tokens::LANES)}.template run<false>();
}

// y [token], in float32: the gain.
template <class In, NormKind KIND, int DIM>
__global__ void __launch_bounds__(32 * layout::NormPlan::warps, DIM > 1024 ? 3 : DIM > 768 ? 5 : 6) gains(const NormParams p) {
  using Tokens = Norm<In, In, KIND, DIM, DIM>;
  wait_for_previous_grid();
  let_next_grid_start();
  Tokens{p, static_cast<int>(threadIdx.x % Tokens::LANES)}.template run<true>();
}

}  // namespace warpweave::kernels::composed
