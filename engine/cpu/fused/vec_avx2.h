// Vectors of 8 floats over AVX2, FMA and F16C. The kernels are written once against the names below; see
// kernels_body.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define WARPWEAVE_ISA avx2
#define WARPWEAVE_INLINE_MEMBER inline __attribute__((always_inline))
#define WARPWEAVE_INLINE static inline __attribute__((always_inline))

namespace warpweave::cpu::fused::avx2 {

using V = __m256;
constexpr int kLanes = 8;
// A product tile: 6 rows by 2 vectors of sums, and operands, in 16 registers.
constexpr int kTileRows = 6, kTileVectors = 2;

WARPWEAVE_INLINE V zero() { return _mm256_setzero_ps(); }
WARPWEAVE_INLINE V broadcast(float x) { return _mm256_set1_ps(x); }
WARPWEAVE_INLINE V load(const float* p) { return _mm256_loadu_ps(p); }
WARPWEAVE_INLINE void store(float* p, V x) { _mm256_storeu_ps(p, x); }
WARPWEAVE_INLINE __m256i first(std::int64_t n) {  // lanes [0, n), n >= 0
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n >= 8 ? 8 : int(n)), lane);
}
// The first n lanes; the others are zero and their memory is not touched.
WARPWEAVE_INLINE V load_part(const float* p, std::int64_t n) { return _mm256_maskload_ps(p, first(n)); }
WARPWEAVE_INLINE void store_part(float* p, V x, std::int64_t n) { _mm256_maskstore_ps(p, first(n), x); }
WARPWEAVE_INLINE V keep_part(V x, std::int64_t n) { return _mm256_and_ps(x, _mm256_castsi256_ps(first(n))); }
WARPWEAVE_INLINE V add(V a, V b) { return _mm256_add_ps(a, b); }
WARPWEAVE_INLINE V sub(V a, V b) { return _mm256_sub_ps(a, b); }
WARPWEAVE_INLINE V mul(V a, V b) { return _mm256_mul_ps(a, b); }
WARPWEAVE_INLINE V div(V a, V b) { return _mm256_div_ps(a, b); }
WARPWEAVE_INLINE V max(V a, V b) { return _mm256_max_ps(a, b); }  // b where either is NaN
WARPWEAVE_INLINE V min(V a, V b) { return _mm256_min_ps(a, b); }
WARPWEAVE_INLINE V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }    // a * b + c
WARPWEAVE_INLINE V fnma(V a, V b, V c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a * b
WARPWEAVE_INLINE V abs(V a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
// yes where a < b, else no (NaN: no).
WARPWEAVE_INLINE V where_less(V a, V b, V yes, V no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
WARPWEAVE_INLINE float sum(V a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// x * 2^n for integral n in [-252, 254] held as float: by two factors, so that results down to the smallest
// subnormal and up to the largest finite number come out as arithmetic gives them.
WARPWEAVE_INLINE V times_power_of_two(V x, V n) {
  const __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}
// x = n + f, n the nearest integer, after x has been brought into [-160, 160]: beyond, 2^x is zero or
// infinite in any case.
WARPWEAVE_INLINE void split(V x, V& n, V& f) {
  x = min(broadcast(160), max(broadcast(-160), x));  // in this order NaN stays
  const V magic = broadcast(12582912.0f);            // 1.5 * 2^23: adding it rounds to an integer
  n = sub(add(x, magic), magic);
  f = sub(x, n);
}

// Rounded to nearest even at 16 bits and back. NaN stays NaN.
WARPWEAVE_INLINE V round_fp16(V x) {
  return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
WARPWEAVE_INLINE V round_bf16(V x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
  const V rounded = _mm256_castsi256_ps(_mm256_and_si256(up, _mm256_set1_epi32(int(0xffff0000u))));
  return _mm256_blendv_ps(rounded, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

// Transposes 8 rows of 8 held in r.
WARPWEAVE_INLINE void transpose(V (&r)[8]) {
  V t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 4) {
    const __m256d a = _mm256_castps_pd(t[i]), b = _mm256_castps_pd(t[i + 1]);
    const __m256d c = _mm256_castps_pd(t[i + 2]), d = _mm256_castps_pd(t[i + 3]);
    r[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
    r[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
    r[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
    r[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const V low = _mm256_permute2f128_ps(r[j], r[4 + j], 0x20);
    r[4 + j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x31);
    r[j] = low;
  }
}

}  // namespace warpweave::cpu::fused::avx2
