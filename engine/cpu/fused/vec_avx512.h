// Vectors of 16 floats over AVX-512. The kernels are written once against the names below; see
// kernels_body.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define WARPWEAVE_ISA avx512
#define WARPWEAVE_INLINE_MEMBER inline __attribute__((always_inline))
#define WARPWEAVE_INLINE static inline __attribute__((always_inline))

namespace warpweave::cpu::fused::avx512 {

using V = __m512;
constexpr int kLanes = 16;
// A product tile: 6 rows by 4 vectors of sums, and operands, in 32 registers.
constexpr int kTileRows = 6, kTileVectors = 4;

WARPWEAVE_INLINE V zero() { return _mm512_setzero_ps(); }
WARPWEAVE_INLINE V broadcast(float x) { return _mm512_set1_ps(x); }
WARPWEAVE_INLINE V load(const float* p) { return _mm512_loadu_ps(p); }
WARPWEAVE_INLINE void store(float* p, V x) { _mm512_storeu_ps(p, x); }
WARPWEAVE_INLINE __mmask16 first(std::int64_t n) {  // lanes [0, n), n >= 0
  return n >= 16 ? __mmask16(0xffff) : __mmask16((1u << n) - 1);
}
// The first n lanes; the others are zero and their memory is not touched.
WARPWEAVE_INLINE V load_part(const float* p, std::int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
WARPWEAVE_INLINE void store_part(float* p, V x, std::int64_t n) { _mm512_mask_storeu_ps(p, first(n), x); }
WARPWEAVE_INLINE V keep_part(V x, std::int64_t n) { return _mm512_maskz_mov_ps(first(n), x); }
WARPWEAVE_INLINE V add(V a, V b) { return _mm512_add_ps(a, b); }
WARPWEAVE_INLINE V sub(V a, V b) { return _mm512_sub_ps(a, b); }
WARPWEAVE_INLINE V mul(V a, V b) { return _mm512_mul_ps(a, b); }
WARPWEAVE_INLINE V div(V a, V b) { return _mm512_div_ps(a, b); }
WARPWEAVE_INLINE V max(V a, V b) { return _mm512_max_ps(a, b); }  // b where either is NaN
WARPWEAVE_INLINE V min(V a, V b) { return _mm512_min_ps(a, b); }
WARPWEAVE_INLINE V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }    // a * b + c
WARPWEAVE_INLINE V fnma(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
WARPWEAVE_INLINE V abs(V a) { return _mm512_abs_ps(a); }
// yes where a < b, else no (NaN: no).
WARPWEAVE_INLINE V where_less(V a, V b, V yes, V no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
WARPWEAVE_INLINE float sum(V a) { return _mm512_reduce_add_ps(a); }

// x * 2^n for integral n held as float; overflows and underflows as arithmetic does.
WARPWEAVE_INLINE V times_power_of_two(V x, V n) { return _mm512_scalef_ps(x, n); }
// x = n + f, n the nearest integer. An infinite x has f = 0; NaN stays.
WARPWEAVE_INLINE void split(V x, V& n, V& f) {
  f = _mm512_reduce_ps(x, 0);
  n = sub(x, f);
}

// Rounded to nearest even at 16 bits and back. NaN stays NaN.
WARPWEAVE_INLINE V round_fp16(V x) {
  return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
WARPWEAVE_INLINE V round_bf16(V x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
  const V rounded = _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(int(0xffff0000u))));
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), rounded, x);
}

// Transposes 16 rows of 16 held in r.
WARPWEAVE_INLINE void transpose(V (&r)[16]) {
  V t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16;
       i += 4) {  // r[i + j] now holds column 4 * block + j of rows i .. i + 3, per block of 128 bits
    const __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]);
    const __m512d c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
    r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 8) {  // pair up the 128-bit blocks of rows i .. i + 3 and i + 4 .. i + 7
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      t[i + j] = _mm512_shuffle_f32x4(r[i + j], r[i + 4 + j], 0x88);      // blocks 0, 2
      t[i + 4 + j] = _mm512_shuffle_f32x4(r[i + j], r[i + 4 + j], 0xdd);  // blocks 1, 3
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    r[j] = _mm512_shuffle_f32x4(t[j], t[8 + j], 0x88);
    r[8 + j] = _mm512_shuffle_f32x4(t[j], t[8 + j], 0xdd);
    r[4 + j] = _mm512_shuffle_f32x4(t[4 + j], t[12 + j], 0x88);
    r[12 + j] = _mm512_shuffle_f32x4(t[4 + j], t[12 + j], 0xdd);
  }
}

}  // namespace warpweave::cpu::fused::avx512
