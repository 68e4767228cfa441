// Sixteen lanes in AVX-512 registers: the vocabulary that every kernel is written in.
//
// All operations are IEEE ones in a fixed order, so every instruction set gives the same bits.
// max_of(a, b) is a > b ? a : b: NaN in b passes through.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace {

using F32 = __m512;     // 16 floats
using I32 = __m512i;    // 16 int32
using Bytes = __m512i;  // 16 rows x 4 bytes, a quarter or an eighth of a panel's group

constexpr int kLanes = 16;
constexpr int kDirectRows = 8;  // rows up to which weights are unpacked in registers
constexpr int kDirectPasses = 1;
constexpr int kTileRows = 12;   // rows of a tile of integers: sums and dots fill the registers
constexpr int kFloatTileRows = 6;
constexpr int kFloatTilePanels = 4;
constexpr int kReadTiles = 1;  // tiles of queries up to which keys are read where they lie
constexpr int kByteOffset = 128;  // what full bytes stand above their values in dot_full
constexpr bool kSplitsInputs = false;  // dot_full takes whole bytes of activations

inline __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1u); }

inline F32 zeros() { return _mm512_setzero_ps(); }
inline F32 broadcast(float x) { return _mm512_set1_ps(x); }
inline F32 load(const float* p) { return _mm512_loadu_ps(p); }
inline F32 load_first(const float* p, int count) {
  return _mm512_maskz_loadu_ps(first_lanes(count), p);
}
inline void store(float* p, F32 x) { _mm512_storeu_ps(p, x); }
inline void store_first(float* p, F32 x, int count) {
  _mm512_mask_storeu_ps(p, first_lanes(count), x);
}
// Lanes from count on become filler.
inline F32 keep_first(F32 x, int count, F32 filler) {
  return _mm512_mask_mov_ps(filler, first_lanes(count), x);
}

inline F32 load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F32 load_f16_first(const uint16_t* p, int count) {
  alignas(32) uint16_t kept[kLanes] = {};
  for (int i = 0; i < count; i++) kept[i] = p[i];
  return load_f16(kept);
}
inline void store_f16(uint16_t* p, F32 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void store_f16_first(uint16_t* p, F32 x, int count) {
  alignas(32) uint16_t kept[kLanes];
  store_f16(kept, x);
  for (int i = 0; i < count; i++) p[i] = kept[i];
}
inline F32 load_bf16(const uint16_t* p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline F32 load_int8(const int8_t* p) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

// Bits of a number with four exponent bits and three of mantissa are those of a float, moved, times
// a power of two; denormal ones too.
inline F32 load_e4m3(const uint8_t* p) {
  __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  __m512i size = _mm512_slli_epi32(_mm512_and_si512(x, _mm512_set1_epi32(0x7f)), 20);
  __m512i sign = _mm512_slli_epi32(_mm512_and_si512(x, _mm512_set1_epi32(0x80)), 24);
  return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_or_si512(size, sign)), _mm512_set1_ps(0x1p120f));
}

inline F32 add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
inline F32 sub(F32 a, F32 b) { return _mm512_sub_ps(a, b); }
inline F32 mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
inline F32 div(F32 a, F32 b) { return _mm512_div_ps(a, b); }
inline F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
inline F32 max_of(F32 a, F32 b) { return _mm512_max_ps(a, b); }
inline F32 min_of(F32 a, F32 b) { return _mm512_min_ps(a, b); }
inline F32 round_even(F32 x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline I32 int_zeros() { return _mm512_setzero_si512(); }
inline I32 int_broadcast(int32_t x) { return _mm512_set1_epi32(x); }
inline I32 int_add(I32 a, I32 b) { return _mm512_add_epi32(a, b); }
inline I32 int_max(I32 a, I32 b) { return _mm512_max_epi32(a, b); }
inline I32 int_and(I32 a, I32 b) { return _mm512_and_si512(a, b); }
inline I32 shift_to_exponent(I32 x) { return _mm512_slli_epi32(x, 23); }
inline I32 bits_of(F32 x) { return _mm512_castps_si512(x); }
inline F32 of_bits(I32 x) { return _mm512_castsi512_ps(x); }
inline F32 to_float(I32 x) { return _mm512_cvtepi32_ps(x); }
inline I32 to_int(F32 x) { return _mm512_cvtps_epi32(x); }  // half to even
inline void store_int8(int8_t* p, I32 x) {                  // values within int8
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
}

// Sums and maxima over lanes: halves, quarters, pairs.
inline float sum_lanes(F32 x) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
inline float max_lanes(F32 x) { return _mm512_reduce_max_ps(x); }

// The same of four registers at once, in a third of the instructions.
template <class Join>
inline void fold_four(const I32 (&x)[4], int32_t* out, const Join& join) {
  I32 ab = join(_mm512_shuffle_i32x4(x[0], x[1], 0x44), _mm512_shuffle_i32x4(x[0], x[1], 0xee));
  I32 cd = join(_mm512_shuffle_i32x4(x[2], x[3], 0x44), _mm512_shuffle_i32x4(x[2], x[3], 0xee));
  I32 all = join(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
  all = join(all, _mm512_shuffle_epi32(all, _MM_PERM_BADC));
  all = join(all, _mm512_shuffle_epi32(all, _MM_PERM_CDAB));
  I32 firsts = _mm512_permutexvar_epi32(
      _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0), all);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_castsi512_si128(firsts));
}
inline void int_sum_four(const I32 (&x)[4], int32_t* out) { fold_four(x, out, int_add); }
inline void int_max_four(const I32 (&x)[4], int32_t* out) { fold_four(x, out, int_max); }

// Whether every lane is from low to high; NaN is not.
inline bool all_between(F32 x, float low, float high) {
  return (_mm512_cmp_ps_mask(x, broadcast(low), _CMP_GE_OQ) &
          _mm512_cmp_ps_mask(x, broadcast(high), _CMP_LE_OQ)) == 0xffff;
}
inline bool any_equal(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ) != 0; }

// Sums of whole numbers, exact in any order, so lanes may be folded.
using F64 = __m512d;
inline F64 double_zeros() { return _mm512_setzero_pd(); }
inline F64 double_add(F64 sum, F32 x) {
  sum = _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
  return _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
}
inline double double_sum_lanes(F64 x) { return _mm512_reduce_add_pd(x); }

inline Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline void store_bytes(uint8_t* p, Bytes x) { _mm512_storeu_si512(p, x); }
inline Bytes low_nibbles(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline Bytes high_nibbles(Bytes x) {
  return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15));
}

// Sums of a group's products: first, then for each row the products of four bytes with the four
// signed ones at x, again and again. dot_small: bytes below 16; dot_full: any. An instruction set
// may add first at the start or at the end.
struct Dots {
  I32 sum;
};
using SmallDots = Dots;
using FullDots = Dots;
inline void start(Dots& dots, int32_t first) { dots.sum = int_broadcast(first); }
inline I32 total(const Dots& dots, int32_t) { return dots.sum; }
#ifdef __AVX512VNNI__
// Written out, since compilers load and broadcast in an instruction of its own: where a neighbour
// takes half of the core's issue slots, the folded form gives half as much again.
inline void dot_small(Dots& dots, Bytes rows, const int8_t* x) {
  typedef int32_t Four __attribute__((may_alias, aligned(1)));
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(dots.sum)
      : "v"(rows), "m"(*reinterpret_cast<const Four*>(x)));
}
inline void dot_full(Dots& dots, Bytes rows, const int8_t* x) { dot_small(dots, rows, x); }
#else
inline __m512i broadcast_four(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm512_set1_epi32(four);
}
inline void dot_small(Dots& dots, Bytes rows, const int8_t* x) {
  __m512i pairs = _mm512_maddubs_epi16(rows, broadcast_four(x));
  dots.sum = _mm512_add_epi32(dots.sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
// Pairs of full bytes would saturate int16: nibble by nibble they cannot.
inline void dot_full(Dots& dots, Bytes rows, const int8_t* x) {
  __m512i high = _mm512_maddubs_epi16(high_nibbles(rows), broadcast_four(x));
  dots.sum = _mm512_add_epi32(dots.sum, _mm512_madd_epi16(high, _mm512_set1_epi16(16)));
  dot_small(dots, low_nibbles(rows), x);
}
#endif

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
