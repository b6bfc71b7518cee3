// A sequence of at most 32 tokens in the registers of one warp, operands in parts (parts.cuh): norm, q k v and attention
// of one head at a time. Nothing is exchanged but inside a quad of lanes: a tile of k as its product leaves it is the B
// operand of q k^T, v becomes one by movmatrix, and weights and outputs are A operands as they lie.
//
// Weights are in shared memory as core matrices (ptx/wgmma.cuh): [part][k / 16][row / 8][k / 8 % 2][row % 8][k % 8], so
// that ldmatrix meets no bank twice; permuted within 16, k of the one and rows of the other, so that a lane's share of a
// fragment is four neighbouring channels of the grid. All that the host can take on is folded into them
// (cuda/split/warp_pack.h): the mean of a token need not be exact, sums are q, k and v as they are multiplied, and q k^T are
// logarithms to base 2.
//
// In fp32 sums are cut every 32 terms and added up outside (products.cuh); in tf32 the tensor core's truncation is far
// below the operands' own. What is fused to one rounding is said, not left to the compiler: two kernels with this code
// give equal bits.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/math.cuh"
#include "ptx/matrix.cuh"
#include "reference/norm.cuh"
#include "resident/products.cuh"
#include "split/params.h"
#include "split/parts.cuh"
#include "split/tokens.cuh"

namespace warpweave::kernels::split {

// SLOT is 16 or 32; DIM and HEAD are multiples of 16. ROTATED: channels of a head that RoPE turns.
template <int Parts_, NormKind Norm, int Dim, int Heads, int Head, int Slot, int Rotated, bool Causal, bool Masked, bool Residual>
struct WarpLayer {
  // PARTS of weights, tokens, q, k and weights of the softmax. In tf32 v has two all the same: that makes up for what
  // weights of one part cost.
  static constexpr int PARTS = Parts_, VALUES = 2;
  static constexpr int DIM = Dim, HEADS = Heads, HEAD = Head, SLOT = Slot, ROTATED = Rotated;
  static constexpr NormKind NORM = Norm;
  static constexpr bool CAUSAL = Causal, MASKED = Masked, RESIDUAL = Residual;
  static constexpr bool SMALL = Parts_ * Head <= 32;  // registers suffice for all that makes it faster
  static constexpr bool FREE = !Causal && !Masked && SMALL;  // softmax without the maximum, see attend
  static constexpr int TILES = SLOT / 16, INNER = HEADS * HEAD, STEPS = DIM / 16, HALF = (STEPS + 1) / 2, HEAD_STEPS = HEAD / 16;
  // Shared memory: both weights; what sums of q, k and v begin with; factor of the result, and what its sums begin with, not
  // masked and masked. Beginnings of two neighbouring columns are stored twice, as a fragment has them.
  static constexpr int OUT = PARTS * DIM * 3 * INNER * 2, QKV_START = OUT + PARTS * INNER * DIM * 2;
  static constexpr int OUT_FACTOR = QKV_START + 3 * INNER * 8, OUT_START = OUT_FACTOR + DIM * 4 + (MASKED ? DIM * 8 : 0);
  static constexpr int WEIGHT_BYTES = OUT_FACTOR + DIM * 4 + 2 * DIM * 8;
  // Operands of a head in shared memory, a lane's own registers in 16 bytes.
  static constexpr int TILE_BYTES = HEAD_STEPS * PARTS * 512, OUTPUT_BYTES = HEADS * TILES * TILE_BYTES;
};

__device__ __forceinline__ float4 load_four(u32 address) {
  u32 v[4];
  load_shared(v, address);
  return {__uint_as_float(v[0]), __uint_as_float(v[1]), __uint_as_float(v[2]), __uint_as_float(v[3])};
}

// Normalises a token whose channels lie in a quad (SPREAD 1) or in eight lanes (SPREAD 2): pieces of four channels
// 16 k + 4 (lane % 4) .., with SPREAD 2 those of the first or of the second half of the steps. The same sums in both.
template <class L, int SPREAD>
__device__ __forceinline__ void normalise_lane(float (&v)[SPREAD == 1 ? L::STEPS : L::HALF][4], float eps) {
  constexpr int OWN = SPREAD == 1 ? L::STEPS : L::HALF;
  // Pieces that this lane does not have, at the end.
  const int absent = SPREAD == 2 && threadIdx.x / 4 % 2 ? 2 * L::HALF - L::STEPS : 0;
  const auto total = [&](const auto& add) {
    float part[2] = {0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < OWN; ++k) {
      if (k + absent < OWN) add(part[k / L::HALF], v[k]);
    }
    return quad_sum(__fadd_rn(part[0], SPREAD == 2 ? __shfl_xor_sync(0xffffffffu, part[0], 4) : part[1]));
  };
  if constexpr (L::NORM == NormKind::layer) {
    const float mean = __fmul_rn(total([](float& sum, const float (&a)[4]) {
                                   sum = __fadd_rn(sum, __fadd_rn(__fadd_rn(a[0], a[1]), __fadd_rn(a[2], a[3])));
                                 }),
                                 1.0f / L::DIM);
#pragma unroll
    for (int k = 0; k < OWN; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[k][i] = __fsub_rn(v[k][i], mean);
    }
  }
  const float square = total([](float& sum, const float (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum = __fmaf_rn(a[i], a[i], sum);
  });
  const float variance = __fmaf_rn(square, 1.0f / L::DIM, eps);
  const float gain = L::PARTS == 1 ? rsqrt_approx(variance) : reciprocal_root(variance);
#pragma unroll
  for (int k = 0; k < OWN; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[k][i] = __fmul_rn(v[k][i], gain);
  }
}

// Operands of tiles and steps in registers.
template <int PARTS, int TILES, int K>
struct LoadedOperands {
  u32 v[TILES][K][PARTS][4];
  // From shared memory, [tile][step][part] of 512 bytes, the lane's own 16 of the first at `address`.
  __device__ __forceinline__ void load(u32 address) {
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
#pragma unroll
        for (int part = 0; part < PARTS; ++part) load_shared(v[t][k][part], address + ((t * K + k) * PARTS + part) * 512);
      }
    }
  }
};

// The kernels' work on one sequence, but for the output projection's end.
template <class L>
struct WarpSequence {
  static constexpr int PARTS = L::PARTS, VALUES = L::VALUES, TILES = L::TILES, HS = L::HEAD_STEPS, KEYS = 2 * TILES;
  static constexpr float BOOST = 13.0f;  // so that small weights of the softmax keep their digits
  // The least sum of weights that has its digits where the largest score is not subtracted.
  static constexpr float LEAST_SUM = PARTS == 2 ? 1.0f : 0.25f;
  static constexpr float LARGER = 512.0f;  // as cuda/split/warp_pack.cpp has it
  using Operand = u32[PARTS][4];  // 16 rows by 16 of k, or 16 of k by 16 columns, of each part
  using Values = u32[VALUES][4];
  using Scores = float[KEYS][4];

  const ShortParams& p;
  u32 weights;
  int lane, g, c;
  LoadedOperands<PARTS, TILES, L::STEPS> n;  // normalised tokens

  __device__ __forceinline__ WarpSequence(const ShortParams& params, u32 shared, int lane_)
      : p(params), weights(shared), lane(lane_), g(lane_ / 4), c(lane_ % 4) {}

  // Row `row` of the lane: token 8 row + g. Its channels 16 k + 4 c .. + 3, 16 bytes, of which the quad has all.
  __device__ __forceinline__ void set_row(int row, float (&v)[L::STEPS][4]) {
    normalise_lane<L, 1>(v, p.eps);
#pragma unroll
    for (int k = 0; k < L::STEPS; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) set(n.v[row / 2][k], row % 2 + 2 * half, v[k][2 * half], v[k][2 * half + 1]);
    }
  }

  // 16 rows of a weight of ROWS by 16 K in shared memory, and what their sums begin with.
  template <int ROWS, int K>
  struct WeightRows {
    u32 address;
    float begin[2][4] = {};

    __device__ __forceinline__ WeightRows(u32 matrix, int row, int lane) : address(matrix + row / 8 * 256 + lane * 16) {}
    // The lane's beginnings are at `start`, those of the other 8 rows `next` bytes on.
    __device__ __forceinline__ void load_begin(u32 start, int next) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 four = load_four(start + i * next);
        begin[i][0] = four.x, begin[i][1] = four.y, begin[i][2] = four.z, begin[i][3] = four.w;
      }
    }
    __device__ __forceinline__ void get(Operand& b, int k) const {
#pragma unroll
      for (int part = 0; part < PARTS; ++part) load_matrices(b[part], address + (part * K + k) * (ROWS / 8) * 256);
    }
  };
  // The same in registers.
  template <int ROWS, int K>
  struct LoadedRows : WeightRows<ROWS, K> {
    Operand b[K];
    __device__ __forceinline__ LoadedRows(u32 matrix, int row, int lane) : WeightRows<ROWS, K>(matrix, row, lane) {
#pragma unroll
      for (int k = 0; k < K; ++k) WeightRows<ROWS, K>::get(b[k], k);
    }
    __device__ __forceinline__ void get(Operand& to, int k) const {
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
#pragma unroll
        for (int r = 0; r < 4; ++r) to[part][r] = b[k][part][r];
      }
    }
  };

  // d = begin + `a` times the rows, of T tiles from `tile` on: [tile][8 of the rows]. BEGIN: sums do not begin with zeros.
  // SMALL: in fp32 the weight is stored times LARGER, so that its second part has its digits.
  template <bool BEGIN, bool SMALL, int K, int T, class A, class Rows>
  static __device__ __forceinline__ void project(float (&d)[T][2][4], const A& a, int tile, const Rows& w) {
    constexpr int CUT = PARTS == 2 ? 2 : K;  // steps of a sum
    constexpr float UNIT = SMALL ? 1.0f / LARGER : 1.0f;
#pragma unroll
    for (int from = 0; from < K; from += CUT) {
      float fresh[T][2][4] = {};
#pragma unroll
      for (int k = from; k < from + CUT && k < K; ++k) {
        Operand b;
        w.get(b, k);
#pragma unroll
        for (int t = 0; t < T; ++t) {
          const Operand& x = a.v[tile + t][k];
          if (PARTS == 1 && BEGIN && k == 0) {
#pragma unroll
            for (int i = 0; i < 2; ++i) mma_from<f16>(fresh[t][i], x[0], b[0][2 * i], b[0][2 * i + 1], w.begin[i]);
          } else {
            multiply(fresh[t][0], fresh[t][1], x, b);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < T; ++t) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            if constexpr (PARTS == 1)
              d[t][i][r] = fresh[t][i][r];
            else
              d[t][i][r] = __fmaf_rn(fresh[t][i][r], UNIT, from == 0 ? w.begin[i][r] : d[t][i][r]);
          }
        }
      }
    }
  }

  // 16 channels of q, k or v (`which`) of a head, from `channels` on, for T tiles from `tile` on, as they are to be
  // multiplied. What k begins with matters where RoPE turns it, and v where a query may have no key; else it is folded into
  // what follows.
  template <int WHICH, int T>
  __device__ __forceinline__ void head_channels(float (&d)[T][2][4], int tile, int head, int channels) const {
    constexpr bool BEGIN = WHICH == 0 || (WHICH == 1 && L::ROTATED > 0) || (WHICH == 2 && L::MASKED);
    const int row = WHICH * L::INNER + head * L::HEAD + channels;
    WeightRows<3 * L::INNER, L::STEPS> rows(weights, row, lane);
    if constexpr (BEGIN) rows.load_begin(weights + L::QKV_START + (row + 2 * c) * 8, 64);
    project<BEGIN, WHICH != 2, L::STEPS>(d, n, tile, rows);
    if constexpr (L::ROTATED > 0 && WHICH < 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int channel = channels + 8 * i + 2 * c;
        if (channel >= L::ROTATED) continue;
#pragma unroll
        for (int t = 0; t < T; ++t) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& first = d[t][i][2 * half];
            float& second = d[t][i][2 * half + 1];
            const float a = first, b = second;
            const int position = min(16 * (tile + t) + 8 * half + g, p.length - 1);
            const float2 turn = *reinterpret_cast<const float2*>(p.rotations + position * L::ROTATED + channel);
            first = __fmaf_rn(a, turn.x, -__fmul_rn(b, turn.y));
            second = __fmaf_rn(a, turn.y, __fmul_rn(b, turn.x));
          }
        }
      }
    }
  }

  // Operands of a head: q of T tiles from `tile` on; k and v of all. Bit t of `valid`: token t may be attended to.
  template <int T>
  __device__ __forceinline__ void project_q(Operand (&q)[T][HS], int tile, int head) const {
#pragma unroll
    for (int s = 0; s < HS; ++s) {
      float d[T][2][4];
      head_channels<0>(d, tile, head, 16 * s);
#pragma unroll
      for (int t = 0; t < T; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) set(q[t][s], i, d[t][i / 2][i % 2 * 2], d[t][i / 2][i % 2 * 2 + 1]);
      }
    }
  }
  __device__ __forceinline__ void project_k_v(Operand (&k)[TILES][HS], Values (&v)[TILES][HS], int head, u32 valid) const {
#pragma unroll
    for (int s = 0; s < HS; ++s) {
      float d[TILES][2][4];
      head_channels<1>(d, 0, head, 16 * s);
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) set(k[t][s], i, d[t][i % 2][i / 2 * 2], d[t][i % 2][i / 2 * 2 + 1]);
      }
      head_channels<2>(d, 0, head, 16 * s);
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float* const pair = d[t][i / 2] + i % 2 * 2;  // token 16 t + i % 2 * 8 + g
          // A masked token may hold anything, and zero times that need not be zero.
          if (L::MASKED && !(valid >> (16 * t + i % 2 * 8 + g) & 1)) pair[0] = pair[1] = 0.0f;
          set(v[t][s], i, pair[0], pair[1]);
#pragma unroll
          for (int part = 0; part < VALUES; ++part) v[t][s][part][i] = transpose_matrix(v[t][s][part][i]);
        }
      }
    }
  }

  // What scores begin with: 0, or minus infinity where there is no such token.
  static __device__ __forceinline__ void begin_scores(Scores& begin, u32 valid, int lane) {
#pragma unroll
    for (int j = 0; j < KEYS; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) begin[j][r] = valid >> (8 * j + lane % 4 * 2 + r % 2) & 1 ? 0.0f : minus_infinity();
    }
  }

  // A head's result for 16 queries as A operands of the output projection; without CHECK all tokens may be attended to,
  // else those of `valid`; `begin` is begin_scores() of it. Without MAX the largest score is not subtracted: returns
  // whether this lane's sums of weights stayed in range then.
  template <bool CHECK, bool MAX>
  __device__ __forceinline__ bool attend(Operand (&result)[HS], const Operand (&q)[HS], const Operand (&k)[TILES][HS],
                                         const Values (&v)[TILES][HS], int tile, u32 valid, const Scores& begin) const {
    Scores s;
#pragma unroll
    for (int j = 0; j < KEYS; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) s[j][r] = CHECK && !MAX ? begin[j][r] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
#pragma unroll
      for (int i = 0; i < HS; ++i) multiply(s[2 * j], s[2 * j + 1], q[i], k[j][i]);
    }
    if constexpr (MAX) subtract_most<CHECK>(s, tile, valid);
    float o[2 * HS][4] = {}, total[PARTS][4] = {};
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      Operand weight;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const pair = s[2 * j + i / 2] + i % 2 * 2;
        set(weight, i, exp2_approx(pair[0]), exp2_approx(pair[1]));
      }
#pragma unroll
      for (int part = 0; part < PARTS; ++part) mma<f16>(total[part], weight[part], Pair<f16>::ones, Pair<f16>::ones);
#pragma unroll
      for (int i = 0; i < HS; ++i) multiply(o[2 * i], o[2 * i + 1], weight, v[j][i]);
    }
    bool fine = true;
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = PARTS == 2 ? __fadd_rn(total[0][2 * half], total[PARTS - 1][2 * half]) : total[0][2 * half];
      fine = fine && sum >= LEAST_SUM && sum <= 65504.0f;
      inverse[half] = MAX && sum == 0.0f ? 0.0f : reciprocal_approx(sum);  // no valid key: 0
    }
#pragma unroll
    for (int i = 0; i < HS; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float(&d)[4] = o[2 * i + r / 2];
        set(result[i], r, __fmul_rn(d[r % 2 * 2], inverse[r % 2]), __fmul_rn(d[r % 2 * 2 + 1], inverse[r % 2]));
      }
    }
    return MAX || fine;
  }

 private:
  template <bool CHECK>
  __device__ __forceinline__ void subtract_most(Scores& s, int tile, u32 valid) const {
    float top[2] = {minus_infinity(), minus_infinity()};
#pragma unroll
    for (int j = 0; j < KEYS; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if constexpr (CHECK) {
          const int key = 8 * j + 2 * c + r % 2;
          const bool seen = (valid >> key & 1) && (!L::CAUSAL || key <= 16 * tile + g + r / 2 * 8);
          s[j][r] = seen ? s[j][r] : minus_infinity();
        }
        top[r / 2] = fmaxf(top[r / 2], s[j][r]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = quad_max(top[half]);
      if (top[half] == minus_infinity()) top[half] = 0.0f;
#pragma unroll
      for (int j = 0; j < KEYS; ++j) {
#pragma unroll
        for (int r = 2 * half; r < 2 * half + 2; ++r)
          s[j][r] = __fmaf_rn(__fsub_rn(s[j][r], top[half]), p.score_scale, BOOST);
      }
    }
  }

  template <int N>
  static __device__ __forceinline__ void set(u32 (&to)[N][4], int i, float first, float second) {
    const Parts<N> pair(first, second);
#pragma unroll
    for (int part = 0; part < N; ++part) to[part][i] = pair.part[part];
  }
};

}  // namespace warpweave::kernels::split
