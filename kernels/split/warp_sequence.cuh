// A sequence of at most 32 tokens, or 16 tokens of it, in the registers of one warp, operands in parts (parts.cuh): norm,
// q k v and attention of one head at a time. Nothing is exchanged but inside a quad of lanes: a tile of k as its product leaves it is the B
// operand of q k^T, v becomes one by movmatrix, and weights and outputs are A operands as they lie.
//
// Weights are in shared memory as core matrices (ptx/wgmma.cuh): [part][k / 16][row / 8][k / 8 % 2][row % 8][k % 8], so
// that ldmatrix meets no bank twice; permuted within 16, k of the one and rows of the other, so that a lane's share of a
// fragment is four neighbouring channels of the grid (cuda/split/pack.h). In fp32 sums are cut every 32 terms and added up outside (products.cuh); in tf32
// the tensor core's truncation is far below the operands' own.
//
// What is fused to one rounding is said, not left to the compiler: two kernels with this code give equal bits.
#pragma once

#include "ptx/copy.cuh"
#include "ptx/math.cuh"
#include "ptx/matrix.cuh"
#include "reference/norm.cuh"
#include "split/params.h"
#include "split/parts.cuh"
#include "split/tokens.cuh"

namespace warpweave::kernels::split {

// SLOT is 16 or 32; DIM and HEAD are multiples of 16. ROTATED: channels of a head that RoPE turns.
template <int Parts_, NormKind Norm, int Dim, int Heads, int Head, int Slot, int Rotated, bool Causal, bool Masked, bool Residual>
struct WarpLayer {
  static constexpr int PARTS = Parts_, DIM = Dim, HEADS = Heads, HEAD = Head, SLOT = Slot, ROTATED = Rotated;
  static constexpr NormKind NORM = Norm;
  static constexpr bool CAUSAL = Causal, MASKED = Masked, RESIDUAL = Residual;
  static constexpr int TILES = SLOT / 16, INNER = HEADS * HEAD, STEPS = DIM / 16, HEAD_STEPS = HEAD / 16;
  // Of the packed weights, in steps of 16 of k.
  static constexpr int DEPTH = (DIM + 31) / 32 * 2, OUT_DEPTH = (INNER + 31) / 32 * 2;
  // Shared memory: both weights, then factor and bias of each.
  static constexpr int OUT = WEIGHT_PARTS * DEPTH * 3 * INNER * 32, QKV_FACTOR = OUT + WEIGHT_PARTS * OUT_DEPTH * DIM * 32;
  static constexpr int QKV_BIAS = QKV_FACTOR + 3 * INNER * 4, OUT_FACTOR = QKV_BIAS + 3 * INNER * 4;
  static constexpr int OUT_BIAS = OUT_FACTOR + DIM * 4, WEIGHT_BYTES = OUT_BIAS + DIM * 4;
  // Operands of a head in shared memory, a lane's own registers in 16 bytes.
  static constexpr int TILE_BYTES = HEAD_STEPS * PARTS * 512, OUTPUT_BYTES = HEADS * TILES * TILE_BYTES;
};

// Both weights, factors and biases are packed as shared memory has them.
template <class L, int THREADS>
__device__ __forceinline__ void copy_layer(u32 shared, const ShortParams& p) {
#pragma unroll 4
  for (int i = threadIdx.x * 16; i < L::WEIGHT_BYTES; i += THREADS * 16)
    copy_async<16>(shared + i, static_cast<const char*>(p.layer) + i);
  copy_commit();
}

__device__ __forceinline__ float2 load_pair(u32 address) {
  u32 v[2];
  load_shared(v, address);
  return {__uint_as_float(v[0]), __uint_as_float(v[1])};
}

// OWN tiles of 16 tokens, from `first` on.
template <class L, int OWN>
struct WarpSequence {
  static constexpr int PARTS = L::PARTS, TILES = L::TILES, HS = L::HEAD_STEPS, KEYS = 2 * TILES;
  static constexpr float SCALE = token_scale<L::DIM>();
  static constexpr float BOOST = 13.0f;  // so that small weights of the softmax keep their digits
  using Operand = u32[PARTS][4];         // 16 rows by 16 of k, or 16 of k by 16 columns, of each part

  const ShortParams& p;
  u32 weights;
  int first, lane, g, c;
  Operand n[OWN][L::STEPS];  // normalised tokens

  __device__ __forceinline__ WarpSequence(const ShortParams& params, u32 shared, int first_token, int lane_)
      : p(params), weights(shared), first(first_token), lane(lane_), g(lane_ / 4), c(lane_ % 4) {}

  // Row `row` of the lane: token first + 8 row + g. Its channels 16 k + 4 c .. + 3, 16 bytes, of which the quad has all.
  __device__ __forceinline__ void set_row(int row, float (&v)[L::STEPS][4]) {
    float sum = 0.0f;
    if constexpr (L::NORM == NormKind::layer) {
#pragma unroll
      for (int pass = 0; pass < 2; ++pass) {  // so that a mean of 1e4 times the spread costs no digits
        sum = 0.0f;
#pragma unroll
        for (int k = 0; k < L::STEPS; ++k) sum += (v[k][0] + v[k][1]) + (v[k][2] + v[k][3]);
        const float mean = quad_sum(sum) / L::DIM;
#pragma unroll
        for (int k = 0; k < L::STEPS; ++k) {
#pragma unroll
          for (int i = 0; i < 4; ++i) v[k][i] = __fsub_rn(v[k][i], mean);
        }
      }
    }
    sum = 0.0f;
#pragma unroll
    for (int k = 0; k < L::STEPS; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum = __fmaf_rn(v[k][i], v[k][i], sum);
    }
    const float gain = SCALE * reciprocal_root(quad_sum(sum) / L::DIM + p.eps);
#pragma unroll
    for (int k = 0; k < L::STEPS; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Parts<PARTS> pair(__fmul_rn(v[k][2 * half], gain), __fmul_rn(v[k][2 * half + 1], gain));
#pragma unroll
        for (int part = 0; part < PARTS; ++part) n[row / 2][k][part][row % 2 + 2 * half] = pair.part[part];
      }
    }
  }

  // d = rows of `a` times 16 rows of the weight at `matrix`, from `row` on: [tile][8 of the rows].
  template <int ROWS, int DEPTH, int K>
  __device__ __forceinline__ void project(float (&d)[OWN][2][4], const Operand (&a)[OWN][K], u32 matrix, int row) const {
    constexpr int CUT = PARTS == 2 ? 2 : K;  // steps of a sum
#pragma unroll
    for (int begin = 0; begin < K; begin += CUT) {
      float fresh[OWN][2][4] = {};
#pragma unroll
      for (int k = begin; k < begin + CUT && k < K; ++k) {
        u32 b[WEIGHT_PARTS][4];
#pragma unroll
        for (int part = 0; part < WEIGHT_PARTS; ++part)
          load_matrices(b[part], matrix + ((part * DEPTH + k) * (ROWS / 8) + row / 8) * 256 + lane * 16);
#pragma unroll
        for (int t = 0; t < OWN; ++t) multiply(fresh[t][0], fresh[t][1], a[t][k], b);
      }
#pragma unroll
      for (int t = 0; t < OWN; ++t) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int r = 0; r < 4; ++r) d[t][i][r] = begin == 0 ? fresh[t][i][r] : d[t][i][r] + fresh[t][i][r];
        }
      }
    }
  }

  // 16 channels of q, k or v (`which`) of a head, from `channels` on, as they are to be multiplied.
  template <int WHICH>
  __device__ __forceinline__ void head_channels(float (&d)[OWN][2][4], int head, int channels) const {
    const int row = WHICH * L::INNER + head * L::HEAD + channels;
    project<3 * L::INNER, L::DEPTH>(d, n, weights, row);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = row + 8 * i + 2 * c, channel = channels + 8 * i + 2 * c;
      const float2 factor = load_pair(weights + L::QKV_FACTOR + column * 4);
      const float2 bias = load_pair(weights + L::QKV_BIAS + column * 4);
#pragma unroll
      for (int t = 0; t < OWN; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& first_of_pair = d[t][i][2 * half];
          float& second = d[t][i][2 * half + 1];
          const float a = __fmaf_rn(first_of_pair, factor.x, bias.x), b = __fmaf_rn(second, factor.y, bias.y);
          first_of_pair = a, second = b;
          if (L::ROTATED > 0 && WHICH < 2 && channel < L::ROTATED) {
            const int position = min(first + 16 * t + 8 * half + g, p.length - 1);
            const float2 turn = *reinterpret_cast<const float2*>(p.rotations + position * L::ROTATED + channel);
            first_of_pair = __fmaf_rn(a, turn.x, -__fmul_rn(b, turn.y));
            second = __fmaf_rn(a, turn.y, __fmul_rn(b, turn.x));
          }
        }
      }
    }
  }

  // q, k and v of a head as operands. Bit t of `valid`: token t may be attended to.
  __device__ __forceinline__ void project_head(Operand (&q)[OWN][HS], Operand (&k)[OWN][HS], Operand (&v)[OWN][HS], int head,
                                               u32 valid) const {
#pragma unroll
    for (int s = 0; s < HS; ++s) {
      float d[OWN][2][4];
      head_channels<0>(d, head, 16 * s);
#pragma unroll
      for (int t = 0; t < OWN; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) set(q[t][s], i, d[t][i / 2][i % 2 * 2], d[t][i / 2][i % 2 * 2 + 1]);
      }
      head_channels<1>(d, head, 16 * s);
#pragma unroll
      for (int t = 0; t < OWN; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) set(k[t][s], i, d[t][i % 2][i / 2 * 2], d[t][i % 2][i / 2 * 2 + 1]);
      }
      head_channels<2>(d, head, 16 * s);
#pragma unroll
      for (int t = 0; t < OWN; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float* const pair = d[t][i / 2] + i % 2 * 2;  // token first + 16 t + i % 2 * 8 + g
          // A masked token may hold anything, and zero times that need not be zero.
          if (L::MASKED && !(valid >> (first + 16 * t + i % 2 * 8 + g) & 1)) pair[0] = pair[1] = 0.0f;
          set(v[t][s], i, pair[0], pair[1]);
#pragma unroll
          for (int part = 0; part < PARTS; ++part) v[t][s][part][i] = transpose_matrix(v[t][s][part][i]);
        }
      }
    }
  }

  // A head's result for 16 queries as A operands of the output projection; without CHECK all tokens may be attended to.
  template <bool CHECK>
  __device__ __forceinline__ void attend(Operand (&result)[HS], const Operand (&q)[HS], const Operand (&k)[TILES][HS],
                                         const Operand (&v)[TILES][HS], int tile, u32 valid) const {
    const float factor = p.score_scale * 1.4426950408889634f;  // to base 2
    float s[KEYS][4] = {};
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
#pragma unroll
      for (int i = 0; i < HS; ++i) multiply(s[2 * j], s[2 * j + 1], q[i], k[j][i]);
    }
    float top[2] = {minus_infinity(), minus_infinity()}, total[2] = {0.0f, 0.0f};
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
      const float most = top[half] == minus_infinity() ? 0.0f : top[half];
#pragma unroll
      for (int j = 0; j < KEYS; ++j) {
#pragma unroll
        for (int r = 2 * half; r < 2 * half + 2; ++r) {
          s[j][r] = exp2_approx(__fmaf_rn(__fsub_rn(s[j][r], most), factor, BOOST));
          total[half] += s[j][r];
        }
      }
      total[half] = quad_sum(total[half]);
      total[half] = total[half] == 0.0f ? 0.0f : reciprocal_approx(total[half]);  // no valid key: 0
    }
    float o[2 * HS][4] = {};
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      Operand weight;
#pragma unroll
      for (int i = 0; i < 4; ++i) set(weight, i, s[2 * j + i / 2][i % 2 * 2], s[2 * j + i / 2][i % 2 * 2 + 1]);
#pragma unroll
      for (int i = 0; i < HS; ++i) multiply(o[2 * i], o[2 * i + 1], weight, v[j][i]);
    }
#pragma unroll
    for (int i = 0; i < HS; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float(&d)[4] = o[2 * i + r / 2];
        set(result[i], r, __fmul_rn(d[r % 2 * 2], total[r % 2]), __fmul_rn(d[r % 2 * 2 + 1], total[r % 2]));
      }
    }
  }

 private:
  static __device__ __forceinline__ void set(Operand& to, int i, float first, float second) {
    const Parts<PARTS> pair(first, second);
#pragma unroll
    for (int part = 0; part < PARTS; ++part) to[part][i] = pair.part[part];
  }
};

}  // namespace warpweave::kernels::split
