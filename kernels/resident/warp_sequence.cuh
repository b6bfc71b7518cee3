// Attention of one head over a sequence of at most 32 tokens that one warp holds in registers.
//
// A tile of K as the QKV product leaves it is the B operand of Q K^T, and a tile of weights the A operand of
// P V; tiles of V are transposed between lanes (movmatrix) and then its B operand. Wqkv comes from shared memory
// as core matrices (layout/fragments.h).
#pragma once

#include "ptx/math.cuh"
#include "ptx/matrix.cuh"
#include "ptx/mma.cuh"
#include "resident/arguments.h"
#include "resident/warp_norm.cuh"

namespace warpweave {

template <class S>
struct WarpSequence {
  using T = typename S::T;
  static constexpr int tiles = S::tiles, steps = S::steps, hs = S::head_steps,
                       keys = 2 * S::tiles;  // keys: n = 8 tiles
  static constexpr int head_n = S::head_width / 8;

  u32 n[tiles][steps][4];  // normalised tokens, as A fragments
  int lane, g, c;

  // Rows of a tile: half 0 is token 16 tile + g, half 1 is token 16 tile + g + 8.
  __device__ __forceinline__ void set_row(int tile, int half, const u32 (&v)[S::groups]) {
#pragma unroll
    for (int k = 0; k < steps; ++k) {
      n[tile][k][half] = v[2 * k];
      n[tile][k][half + 2] = 2 * k + 1 < S::groups ? v[2 * k + 1 < S::groups ? 2 * k + 1 : 0] : 0;
    }
  }

  // Tokens times 16 rows of a weight matrix from core matrix pair `first` on: [tiles][2 n tiles].
  template <int Rows>
  __device__ __forceinline__ void project(float (&d)[tiles][2][4], u32 matrix, int first) const {
#pragma unroll
    for (int k = 0; k < steps; ++k) {
      u32 b[4];
      load_matrices(b, matrix + (k * (Rows / 8) + first) * layout::core_pair_bytes + lane * 16);
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        mma<T>(d[t][0], n[t][k], b[0], b[1]);
        mma<T>(d[t][1], n[t][k], b[2], b[3]);
      }
    }
  }

  // Sets accumulators to the bias of 16 channels; `bias` is where this lane's first pair is.
  template <bool Present>
  static __device__ __forceinline__ void start(float (&d)[tiles][2][4], u32 bias) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      u32 b[4] = {0, 0, 0, 0};
      if constexpr (Present) load_shared(b, bias + i * 64);
#pragma unroll
      for (int t = 0; t < tiles; ++t)
#pragma unroll
        for (int j = 0; j < 4; ++j) d[t][i][j] = __uint_as_float(b[j]);
    }
  }

  // Rotates neighbouring channels of 16, `first` being the first of them in the head.
  __device__ __forceinline__ void rotate(float (&d)[tiles][2][4], const float* rotation, int length,
                                         int first) const {
#pragma unroll
    for (int t = 0; t < tiles; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = min(16 * t + g + 8 * half, length - 1);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 r = reinterpret_cast<const float2*>(
              rotation)[token * (S::head_width / 2) + (first + 8 * i) / 2 + c];
          const float a = d[t][i][2 * half], b = d[t][i][2 * half + 1];
          d[t][i][2 * half] = a * r.x - b * r.y;
          d[t][i][2 * half + 1] = b * r.x + a * r.y;
        }
      }
  }

  // O of `P` neighbouring heads as A fragments; several at once give the scheduler independent work. `bias`
  // and `qkv` are the first head's parts of the weights in shared memory. Bit t of `valid` says that token t
  // is a key; without Check all slot tokens are. Without Max the largest score is not subtracted; returns
  // whether this lane's sums of weights stayed in range then.
  template <int P, bool Check, bool Max>
  __device__ __forceinline__ bool attend(u32 (*o)[tiles][hs][4], u32 bias, u32 qkv,
                                         const ResidentArguments& args, u32 valid) const {
    constexpr int rows = 3 * S::head_width, head_bias = S::head_width * 8,
                  part_bias = S::weights.part_tile_bias_bytes(), head_qkv = S::weights.head_qkv_bytes();
    u32 q[P][tiles][hs][4], k[P][keys][hs][2], v[P][tiles][head_n][2];
#pragma unroll
    for (int h = 0; h < P; ++h)
#pragma unroll
      for (int s = 0; s < hs; ++s) {
        float d[tiles][2][4];
        start<S::q_bias>(d, bias + h * head_bias + (16 * s + 2 * c) * 8);
        project<rows>(d, qkv + h * head_qkv, 2 * s);
        if constexpr (S::rope) rotate(d, args.rotation, args.length, 16 * s);
#pragma unroll
        for (int t = 0; t < tiles; ++t)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            q[h][t][s][i] = Pair<T>::pack(d[t][i / 2][i % 2 * 2], d[t][i / 2][i % 2 * 2 + 1]);
      }
#pragma unroll
    for (int h = 0; h < P; ++h)
#pragma unroll
      for (int s = 0; s < hs; ++s) {
        float d[tiles][2][4];
        start<S::k_bias>(d, bias + h * head_bias + part_bias + (16 * s + 2 * c) * 8);
        project<rows>(d, qkv + h * head_qkv, head_n + 2 * s);
        if constexpr (S::rope) rotate(d, args.rotation, args.length, 16 * s);
#pragma unroll
        for (int t = 0; t < keys; ++t)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            k[h][t][s][i] = Pair<T>::pack(d[t / 2][i][t % 2 * 2], d[t / 2][i][t % 2 * 2 + 1]);
      }
#pragma unroll
    for (int h = 0; h < P; ++h)
#pragma unroll
      for (int s = 0; s < hs; ++s) project_value(v[h], s, bias + h * head_bias, qkv + h * head_qkv, valid);
    bool fine = true;
#pragma unroll
    for (int t = 0; t < tiles; ++t) fine = attend_tile<P, Check, Max>(o, q, k, v, t, valid) && fine;
    return fine;
  }

 private:
  // 16 channels of V as B operand of P V: slices 2 s and 2 s + 1 of v.
  __device__ __forceinline__ void project_value(u32 (&v)[tiles][head_n][2], int s, u32 bias, u32 qkv,
                                                u32 valid) const {
    float d[tiles][2][4];
    start<S::v_bias>(d, bias + 2 * S::weights.part_tile_bias_bytes() + (16 * s + 2 * c) * 8);
    project<3 * S::head_width>(d, qkv, 2 * head_n + 2 * s);
#pragma unroll
    for (int t = 0; t < keys; ++t)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float* e = d[t / 2][i] + t % 2 * 2;  // token 8 t + g
        // A masked token may hold anything, and zero times that need not be zero.
        if (S::mask && !(valid >> (8 * t + g) & 1)) e[0] = e[1] = 0;
        v[t / 2][2 * s + i][t % 2] = transpose_matrix(Pair<T>::pack(e[0], e[1]));
      }
  }

  // Weights of a tile's queries, and their sums (columns 0 and 2 of a product by ones, so of the weights as
  // they are used, rounded). Without Max the largest score is not subtracted.
  template <int P, bool Check, bool Max>
  __device__ __forceinline__ void weigh(u32 (&p)[P][tiles][4], float (&sum)[P][4],
                                        const u32 (&q)[P][tiles][hs][4], const u32 (&k)[P][keys][hs][2],
                                        int tile, u32 valid) const {
    float s[P][keys][4], top[P][2];
#pragma unroll
    for (int h = 0; h < P; ++h)
#pragma unroll
      for (int t = 0; t < keys; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[h][t][i] = 0;
#pragma unroll
        for (int j = 0; j < hs; ++j) mma<T>(s[h][t], q[h][tile][j], k[h][t][j][0], k[h][t][j][1]);
        if constexpr (Check) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int key = 8 * t + 2 * c + i % 2;
            const bool seen = (valid >> key & 1) && (!S::causal || key <= 16 * tile + g + i / 2 * 8);
            if (!seen) s[h][t][i] = minus_infinity();
          }
        }
      }
    if constexpr (Max) {
#pragma unroll
      for (int h = 0; h < P; ++h)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float m = fmaxf(s[h][0][2 * half], s[h][0][2 * half + 1]);
#pragma unroll
          for (int t = 1; t < keys; ++t) m = fmaxf(m, fmaxf(s[h][t][2 * half], s[h][t][2 * half + 1]));
          m = quad_max(m);
          top[h][half] = S::mask && m == minus_infinity() ? 0 : m;  // no key: every weight is exp2(-inf) = 0
        }
    }
#pragma unroll
    for (int h = 0; h < P; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[h][i] = 0;
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* e = s[h][2 * t + i / 2] + i % 2 * 2;
          if constexpr (Max)
            p[h][t][i] = Pair<T>::pack(exp2_approx(e[0] - top[h][i % 2]), exp2_approx(e[1] - top[h][i % 2]));
          else
            p[h][t][i] = Pair<T>::pack(exp2_approx(e[0]), exp2_approx(e[1]));
        }
        mma<T>(sum[h], p[h][t], Pair<T>::ones, Pair<T>::ones);
      }
    }
  }

  template <int P, bool Check, bool Max>
  __device__ __forceinline__ bool attend_tile(u32 (*o)[tiles][hs][4], const u32 (&q)[P][tiles][hs][4],
                                              const u32 (&k)[P][keys][hs][2],
                                              const u32 (&v)[P][tiles][head_n][2], int tile,
                                              u32 valid) const {
    u32 p[P][tiles][4];
    float sum[P][4];
    weigh<P, Check, Max>(p, sum, q, k, tile, valid);
    bool fine = true;
    if constexpr (!Max) {
#pragma unroll
      for (int h = 0; h < P; ++h) fine = fine && sum_in_range<T>(sum[h][0]) && sum_in_range<T>(sum[h][2]);
    }
#pragma unroll
    for (int h = 0; h < P; ++h) {
      float d[head_n][4];
#pragma unroll
      for (int i = 0; i < head_n; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) d[i][j] = 0;
#pragma unroll
      for (int t = 0; t < tiles; ++t)
#pragma unroll
        for (int i = 0; i < head_n; ++i) mma<T>(d[i], p[h][t], v[h][t][i][0], v[h][t][i][1]);
      float inverse[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        inverse[half] = reciprocal_approx(sum[h][2 * half]);
        if (S::mask && sum[h][2 * half] == 0) inverse[half] = 0;
      }
#pragma unroll
      for (int j = 0; j < hs; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          o[h][tile][j][i] = Pair<T>::pack(d[2 * j + i / 2][i % 2 * 2] * inverse[i % 2],
                                           d[2 * j + i / 2][i % 2 * 2 + 1] * inverse[i % 2]);
    }
    return fine;
  }
};

// Which tokens of a sequence of at most 32 are keys, one bit each.
template <class S>
__device__ __forceinline__ u32 valid_keys(const ResidentArguments& a, i64 cell, int lane) {
  bool valid = lane < a.length;
  if constexpr (S::mask) valid = valid && a.mask[cell + lane * a.token_cells] != 0;
  return __ballot_sync(0xffffffffu, valid);
}

}  // namespace warpweave
