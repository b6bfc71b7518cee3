// The two products of attention on tensor cores, for a warp that owns TILES x 16 queries:
// scores = q k^T and out += p v, with k and v in shared memory, rows of ROW elements in ROW_BYTES.
//
// SLACK: a row's maximum moves once scores exceed it by 2^SLACK; BOOST: weights come out 2^BOOST times as large.
// NARROW: weights just above the maximum's would be infinite, so the maximum is subtracted before anything is rounded.
//
// Accumulators are those of m16n8 (ptx/mma.cuh): with g = lane / 4, c = lane % 4 a lane holds rows g and g + 8,
// columns 2c and 2c + 1 of every 16 x 8 tile. ROW_BYTES is an odd multiple of 16, so that 8 rows read at the same
// column fall into different banks.
#pragma once

#include "common/types.cuh"
#include "ptx/matrix.cuh"
#include "ptx/mma.cuh"

namespace warpweave::kernels::composed {

// Whether numbers of the type end at 65504.
template <class T>
constexpr bool kEndsEarly = false;
template <>
constexpr bool kEndsEarly<f16> = true;

// 16-bit operands by m16n8k16. HEAD_DIM is a multiple of 16.
template <class T, int HEAD>
struct HalfProducts {
  using Element = T;
  static constexpr int HEAD_DIM = HEAD, ROW = HEAD;
  static constexpr float SLACK = 8.0f, BOOST = 0.0f;
  static constexpr bool NARROW = kEndsEarly<T>;
  static constexpr int ROW_BYTES = HEAD * 2 + 16;
  static constexpr bool RESIDENT = HEAD <= 128;  // q stays in registers; else it is read again for every tile

  template <int TILES>
  struct Query {
    u32 address;  // of the warp's first row
    u32 a[TILES][RESIDENT ? HEAD / 16 : 1][4];
  };

  // Two neighbouring channels of a result, to a row in shared memory.
  static __device__ __forceinline__ void store(u32 row, int channel, float first, float second) {
    store_shared(row + channel * 2, Pair<T>::pack(first, second));
  }

  static __device__ __forceinline__ void load_fragment(u32 (&a)[4], u32 rows, int step) {
    const int lane = threadIdx.x % 32;
    load_matrices(a, rows + (lane % 16) * ROW_BYTES + step * 32 + lane / 16 * 16);
  }

  template <int TILES>
  static __device__ __forceinline__ void load_query(Query<TILES>& q, u32 address) {
    q.address = address;
    if constexpr (RESIDENT) {
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int k = 0; k < HEAD / 16; ++k) load_fragment(q.a[m][k], address + m * 16 * ROW_BYTES, k);
      }
    }
  }

  template <int TILES, int KEYS>
  static __device__ __forceinline__ void scores(float (&s)[TILES][KEYS / 8][4], const Query<TILES>& q, u32 keys) {
    const int lane = threadIdx.x % 32;
    const u32 from = keys + (lane / 16 * 8 + lane % 8) * ROW_BYTES + lane / 8 % 2 * 16;
#pragma unroll
    for (int k = 0; k < HEAD / 16; ++k) {
      u32 a[TILES][4];
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
        if constexpr (RESIDENT) {
#pragma unroll
          for (int r = 0; r < 4; ++r) a[m][r] = q.a[m][k][r];
        } else {
          load_fragment(a[m], q.address + m * 16 * ROW_BYTES, k);
        }
      }
#pragma unroll
      for (int n = 0; n < KEYS / 8; n += 2) {
        u32 b[4];
        load_matrices(b, from + n * 8 * ROW_BYTES + k * 32);
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
          mma<T>(s[m][n], a[m], b[0], b[1]);
          mma<T>(s[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  template <int TILES, int KEYS>
  static __device__ __forceinline__ void accumulate(float (&o)[TILES][HEAD / 8][4],
                                                    const float (&p)[TILES][KEYS / 8][4], u32 values) {
    const int lane = threadIdx.x % 32;
    const u32 from = values + lane % 16 * ROW_BYTES + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
      u32 a[TILES][4];
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float(&tile)[4] = p[m][2 * k + r / 2];
          a[m][r] = Pair<T>::pack(tile[r % 2 * 2], tile[r % 2 * 2 + 1]);
        }
      }
#pragma unroll
      for (int n = 0; n < HEAD / 8; n += 2) {
        u32 b[4];
        load_matrices_transposed(b, from + k * 16 * ROW_BYTES + n * 16);
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
          mma<T>(o[m][n], a[m], b[0], b[1]);
          mma<T>(o[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
};

// float32 operands by m16n8k8 on tf32: each operand as the sum of two tf32 numbers and a product as three, which is
// fp32's accuracy. (Precision tf32 takes them too: single products of q, k, p and v would cost more accuracy than all
// projections together.) The tensor core truncates as it accumulates, an error that grows with the length of the sum,
// so sums of 32 terms are added up outside. HEAD_DIM is a multiple of 8. ROUND: whether the output is rounded to
// tf32, which the next product would do less well.
template <int HEAD, bool ROUND>
struct FloatProducts {
  using Element = float;
  static constexpr int HEAD_DIM = HEAD, ROW = HEAD;
  static constexpr float SLACK = 8.0f, BOOST = 0.0f;
  static constexpr bool NARROW = false;
  static constexpr int ROW_BYTES = HEAD * 4 + 16;
  static constexpr int GROUP = 4;  // steps of 8 terms that the tensor core adds up

  template <int TILES>
  struct Query {
    u32 address;
  };

  template <int N>
  struct Operand {
    u32 high[N], low[N];
    __device__ __forceinline__ void set(int i, float v) {
      high[i] = (__float_as_uint(v) + 0x1000u) & 0xffffe000u;  // loses a NaN, which the other part then has
      low[i] = __float_as_uint(v - __uint_as_float(high[i]));  // the instruction ignores its last 13 bits
    }
  };

  static __device__ __forceinline__ void mma_tf32(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }

  static __device__ __forceinline__ void multiply(float (&d)[4], const Operand<4>& a, const Operand<2>& b) {
    mma_tf32(d, a.low, b.high);
    mma_tf32(d, a.high, b.low);
    mma_tf32(d, a.high, b.high);
  }

  static __device__ __forceinline__ void store(u32 row, int channel, float first, float second) {
    store_shared(row + channel * 4, __float_as_uint(ROUND ? rounded<tf32>(first) : first));
    store_shared(row + channel * 4 + 4, __float_as_uint(ROUND ? rounded<tf32>(second) : second));
  }

  static __device__ __forceinline__ float read(u32 address) { return __uint_as_float(load_shared(address)); }

  template <int TILES>
  static __device__ __forceinline__ void load_query(Query<TILES>& q, u32 address) {
    q.address = address;
  }

  template <int TILES, int KEYS>
  static __device__ __forceinline__ void scores(float (&s)[TILES][KEYS / 8][4], const Query<TILES>& q, u32 keys) {
    const int lane = threadIdx.x % 32;
    const u32 own = lane / 4 * ROW_BYTES + lane % 4 * 4;
#pragma unroll(HEAD > 128 ? 1 : HEAD / 8)  // registers are short for wide heads
    for (int group = 0; group < HEAD / 8; group += GROUP) {
      float part[TILES][KEYS / 8][4] = {};
#pragma unroll
      for (int k = group; k < HEAD / 8 && k < group + GROUP; ++k) {
        Operand<4> a[TILES];
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
          const u32 from = q.address + m * 16 * ROW_BYTES + own + k * 32;
          a[m].set(0, read(from));
          a[m].set(1, read(from + 8 * ROW_BYTES));
          a[m].set(2, read(from + 16));
          a[m].set(3, read(from + 8 * ROW_BYTES + 16));
        }
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
          Operand<2> b;
          const u32 from = keys + n * 8 * ROW_BYTES + own + k * 32;
          b.set(0, read(from));
          b.set(1, read(from + 16));
#pragma unroll
          for (int m = 0; m < TILES; ++m) multiply(part[m][n], a[m], b);
        }
      }
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) {
#pragma unroll
          for (int r = 0; r < 4; ++r) s[m][n][r] += part[m][n][r];
        }
      }
    }
  }

  // An accumulator tile of p is an operand as it stands when term c of a step is taken for key 2c and term c + 4
  // for key 2c + 1.
  template <int TILES, int KEYS>
  static __device__ __forceinline__ void accumulate(float (&o)[TILES][HEAD / 8][4],
                                                    const float (&p)[TILES][KEYS / 8][4], u32 values) {
    const int lane = threadIdx.x % 32;
    const u32 own = lane % 4 * 2 * ROW_BYTES + lane / 4 * 4;
    static_assert(KEYS / 8 <= GROUP);
    Operand<4> a[TILES][KEYS / 8];
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
      for (int k = 0; k < KEYS / 8; ++k) {
        a[m][k].set(0, p[m][k][0]);
        a[m][k].set(1, p[m][k][2]);
        a[m][k].set(2, p[m][k][1]);
        a[m][k].set(3, p[m][k][3]);
      }
    }
#pragma unroll
    for (int n = 0; n < HEAD / 8; ++n) {
      float part[TILES][4] = {};
#pragma unroll
      for (int k = 0; k < KEYS / 8; ++k) {
        Operand<2> b;
        const u32 from = values + k * 8 * ROW_BYTES + own + n * 32;
        b.set(0, read(from));
        b.set(1, read(from + ROW_BYTES));
#pragma unroll
        for (int m = 0; m < TILES; ++m) multiply(part[m], a[m][k], b);
      }
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int r = 0; r < 4; ++r) o[m][n][r] += part[m][r];
      }
    }
  }
};

}  // namespace warpweave::kernels::composed
