// Tokens of the grid, normalised, as rows of shared memory in parts (parts.cuh).
#pragma once

#include "common/reduce.cuh"
#include "ptx/math.cuh"
#include "ptx/matrix.cuh"
#include "reference/norm.cuh"
#include "split/parts.cuh"

namespace warpweave::kernels::split {

// Normalised tokens are stored times a power of two that keeps sqrt(DIM), which none of them exceeds, within 2^15; the
// host has it as token_shift().
template <int DIM>
constexpr float token_scale() {
  int shift = 15;
  while (DIM * (1ll << 2 * shift) > 1ll << 30) --shift;
  return static_cast<float>(1 << shift);
}

// 1 / sqrt(x) to float32's accuracy: the instruction's 2^-22, and a step of Newton's. 0 at infinity.
__device__ __forceinline__ float reciprocal_root(float x) {
  const float y = rsqrt_approx(x);
  return y == 0.0f ? 0.0f : __fmaf_rn(__fmaf_rn(-__fmul_rn(x, y), y, 1.0f), 0.5f * y, y);
}

// Rows in order: [PARTS, DEPTH] fp16, PITCH bytes apart.
template <int DEPTH, int PITCH>
struct PlainRows {
  u32 first;
  __device__ __forceinline__ u32 operator()(int slot, int part, int channel) const {
    return first + slot * PITCH + part * DEPTH * 2 + channel * 2;
  }
};

// DEPTH is DIM rounded up to 32; channels past DIM are zero, since products take them.
// A lane loads up to MOST vectors of 16 bytes before it uses the first.
template <int PARTS, NormKind NORM, int DIM, int DEPTH, int MOST = 4>
struct Tokens {
  static constexpr float SCALE = token_scale<DIM>();
  static constexpr int VECTORS = DIM / 4;
  static constexpr int LANES = VECTORS > 16 ? 32 : VECTORS > 8 ? 16 : 8;  // of a token
  static constexpr int PER = (VECTORS + LANES - 1) / LANES;                                // 16-byte vectors of a lane
  static_assert(LANES * PER * 4 >= DEPTH && DEPTH % 32 == 0);
  static constexpr int AT_ONCE = MOST / PER > 0 ? MOST / PER : 1;  // tokens of a lane whose loads are under way together

  // The first THREADS threads of the block call it. `place(slot)` is the element of the grid at which token `slot`
  // begins, or negative where there is none: such rows are zero. `done(slot, place)` is called by one lane of each.
  // `to(slot, part, channel)` is the address of four channels of a part.
  template <int COUNT, int THREADS, class To, class Place, class Done>
  static __device__ __forceinline__ void load(const To& to, const float* x, float eps, const Place& place,
                                              const Done& done) {
    const int lane = threadIdx.x % LANES;
    constexpr int STEP = THREADS / LANES;
#pragma unroll 1
    for (int begin = threadIdx.x / LANES; begin - static_cast<int>(threadIdx.x / LANES) < COUNT; begin += AT_ONCE * STEP) {
      float v[AT_ONCE][PER][4] = {};
      i64 from[AT_ONCE];
#pragma unroll
      for (int t = 0; t < AT_ONCE; ++t) {
        const int slot = begin + t * STEP;
        from[t] = slot < COUNT ? place(slot) : -1;
#pragma unroll
        for (int i = 0; i < PER; ++i) {
          if (from[t] >= 0 && i * LANES + lane < VECTORS) {
            const float4 a = *reinterpret_cast<const float4*>(x + from[t] + (i * LANES + lane) * 4);
            v[t][i][0] = a.x, v[t][i][1] = a.y, v[t][i][2] = a.z, v[t][i][3] = a.w;
          }
        }
      }
#pragma unroll
      for (int t = 0; t < AT_ONCE; ++t) {
        const int slot = begin + t * STEP;
        normalise(v[t], lane, eps);
        if (slot < COUNT) {
          store(to, slot, v[t], lane);
          if (lane == 0) done(slot, from[t]);
        }
      }
    }
  }

 private:
  // Channels past DIM are zero and stay so.
  static __device__ __forceinline__ void normalise(float (&v)[PER][4], int lane, float eps) {
    const auto each = [&](auto f) {
#pragma unroll
      for (int i = 0; i < PER; ++i) {
        if (i * LANES + lane < VECTORS) {
#pragma unroll
          for (int c = 0; c < 4; ++c) f(v[i][c]);
        }
      }
    };
    float sum = 0.0f;
    if constexpr (NORM == NormKind::layer) {
#pragma unroll
      for (int pass = 0; pass < 2; ++pass) {  // so that a mean of 1e4 times the spread costs no digits
        sum = 0.0f;
        each([&](float a) { sum += a; });
        const float mean = sum_lanes<LANES>(sum) / DIM;
        each([&](float& a) { a -= mean; });
      }
    }
    sum = 0.0f;
    each([&](float a) { sum += a * a; });
    const float gain = SCALE * reciprocal_root(sum_lanes<LANES>(sum) / DIM + eps);
    each([&](float& a) { a *= gain; });
  }

  template <class To>
  static __device__ __forceinline__ void store(const To& to, int slot, const float (&v)[PER][4], int lane) {
#pragma unroll
    for (int i = 0; i < PER; ++i) {
      const int d = (i * LANES + lane) * 4;
      if (d >= DEPTH) continue;
      const Parts<PARTS> a(v[i][0], v[i][1]), b(v[i][2], v[i][3]);
#pragma unroll
      for (int part = 0; part < PARTS; ++part)
        store_shared(to(slot, part, d), a.part[part], b.part[part]);
    }
  }
};

}  // namespace warpweave::kernels::split
