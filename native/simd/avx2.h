// Sixteen lanes in two AVX2 registers: the same operations as simd/avx512.h, and the same bits.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace {

struct F32 {
  __m256 low, high;
};
struct I32 {
  __m256i low, high;
};
using Bytes = I32;

constexpr int kLanes = 16;
constexpr int kDirectRows = 4;  // sums go to memory meanwhile; a second pass took longer
constexpr int kDirectPasses = 2;  // eight rows unpacked first took an eighth longer
constexpr int kTileRows = 3;  // of four, full bytes took a twelfth longer
constexpr int kFloatTileRows = 6;  // sums, one panel and a broadcast fill 15 of 16 registers
constexpr int kFloatTilePanels = 1;
constexpr int kReadTiles = 2;  // tiles of queries up to which keys are read where they lie
constexpr int kByteOffset = 128;
constexpr bool kSplitsInputs = true;  // dot_full takes high nibbles, low ones 32 bytes later

inline __m256i first_lanes(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline F32 zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline F32 load_first(const float* p, int count) {
  return {_mm256_maskload_ps(p, first_lanes(count)),
          _mm256_maskload_ps(p + 8, first_lanes(count - 8))};
}
inline void store(float* p, F32 x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
inline void store_first(float* p, F32 x, int count) {
  _mm256_maskstore_ps(p, first_lanes(count), x.low);
  _mm256_maskstore_ps(p + 8, first_lanes(count - 8), x.high);
}
inline F32 keep_first(F32 x, int count, F32 filler) {
  return {_mm256_blendv_ps(filler.low, x.low, _mm256_castsi256_ps(first_lanes(count))),
          _mm256_blendv_ps(filler.high, x.high, _mm256_castsi256_ps(first_lanes(count - 8)))};
}

inline F32 load_f16(const uint16_t* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline F32 load_f16_first(const uint16_t* p, int count) {
  uint16_t kept[kLanes] = {};
  for (int i = 0; i < count; i++) kept[i] = p[i];
  return load_f16(kept);
}
inline void store_f16(uint16_t* p, F32 x) {
  __m128i* halves = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(halves, _mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(halves + 1, _mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT));
}
inline void store_f16_first(uint16_t* p, F32 x, int count) {
  uint16_t kept[kLanes];
  store_f16(kept, x);
  for (int i = 0; i < count; i++) p[i] = kept[i];
}
inline F32 load_bf16(const uint16_t* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  __m256i low = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(halves)), 16);
  __m256i high = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(halves + 1)), 16);
  return {_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)};
}
inline F32 load_int8(const int8_t* p) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}

// Bits of a number with four exponent bits and three of mantissa are those of a float, moved, times
// a power of two; denormal ones too.
inline __m256 of_e4m3(__m128i bytes) {
  __m256i x = _mm256_cvtepu8_epi32(bytes);
  __m256i size = _mm256_slli_epi32(_mm256_and_si256(x, _mm256_set1_epi32(0x7f)), 20);
  __m256i sign = _mm256_slli_epi32(_mm256_and_si256(x, _mm256_set1_epi32(0x80)), 24);
  return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(size, sign)), _mm256_set1_ps(0x1p120f));
}
inline F32 load_e4m3(const uint8_t* p) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {of_e4m3(bytes), of_e4m3(_mm_srli_si128(bytes, 8))};
}

inline F32 add(F32 a, F32 b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline F32 sub(F32 a, F32 b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline F32 mul(F32 a, F32 b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline F32 div(F32 a, F32 b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline F32 fma(F32 a, F32 b, F32 c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline F32 max_of(F32 a, F32 b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline F32 min_of(F32 a, F32 b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
inline F32 round_even(F32 x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, kMode), _mm256_round_ps(x.high, kMode)};
}

inline I32 int_zeros() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I32 int_broadcast(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I32 int_add(I32 a, I32 b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
inline I32 int_max(I32 a, I32 b) {
  return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)};
}
inline I32 int_and(I32 a, I32 b) {
  return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}
inline I32 shift_to_exponent(I32 x) {
  return {_mm256_slli_epi32(x.low, 23), _mm256_slli_epi32(x.high, 23)};
}
inline I32 bits_of(F32 x) { return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)}; }
inline F32 of_bits(I32 x) { return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }
inline F32 to_float(I32 x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
inline I32 to_int(F32 x) { return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)}; }
inline void store_int8(int8_t* p, I32 x) {
  __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.low, x.high), 0xd8);
  __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

inline float sum_lanes(F32 x) {
  __m256 h = _mm256_add_ps(x.low, x.high);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
inline float max_lanes(F32 x) {
  __m256 h = _mm256_max_ps(x.low, x.high);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
inline int32_t int_sum_lanes(I32 x) {
  __m256i h = _mm256_add_epi32(x.low, x.high);
  __m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
inline int32_t int_max_lanes(I32 x) {
  __m256i h = _mm256_max_epi32(x.low, x.high);
  __m128i q = _mm_max_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  q = _mm_max_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
inline void int_sum_four(const I32 (&x)[4], int32_t* out) {
  for (int i = 0; i < 4; i++) out[i] = int_sum_lanes(x[i]);
}
inline void int_max_four(const I32 (&x)[4], int32_t* out) {
  for (int i = 0; i < 4; i++) out[i] = int_max_lanes(x[i]);
}
inline bool all_between(F32 x, float low, float high) {
  float kept[kLanes];
  store(kept, x);
  for (float each : kept)
    if (!(each >= low && each <= high)) return false;
  return true;
}
inline bool any_equal(F32 a, F32 b) {
  __m256 equal = _mm256_or_ps(_mm256_cmp_ps(a.low, b.low, _CMP_EQ_OQ),
                              _mm256_cmp_ps(a.high, b.high, _CMP_EQ_OQ));
  return _mm256_movemask_ps(equal) != 0;
}

// Sums of whole numbers, exact in any order, so lanes may be folded.
using F64 = __m256d;
inline F64 double_zeros() { return _mm256_setzero_pd(); }
inline F64 double_add(F64 sum, F32 x) {
  const __m256 halves[2] = {x.low, x.high};
  for (__m256 half : halves) {
    sum = _mm256_add_pd(sum, _mm256_cvtps_pd(_mm256_castps256_ps128(half)));
    sum = _mm256_add_pd(sum, _mm256_cvtps_pd(_mm256_extractf128_ps(half, 1)));
  }
  return sum;
}
inline double double_sum_lanes(F64 x) {
  double kept[4];
  _mm256_storeu_pd(kept, x);
  return kept[0] + kept[1] + kept[2] + kept[3];
}

inline Bytes load_bytes(const uint8_t* p) {
  const __m256i* halves = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline void store_bytes(uint8_t* p, Bytes x) {
  __m256i* halves = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(halves, x.low);
  _mm256_storeu_si256(halves + 1, x.high);
}
inline __m256i low_nibbles(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline __m256i high_nibbles(__m256i x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
inline Bytes low_nibbles(Bytes x) { return {low_nibbles(x.low), low_nibbles(x.high)}; }
inline Bytes high_nibbles(Bytes x) { return {high_nibbles(x.low), high_nibbles(x.high)}; }

// Sums of products of a group's bytes with signed ones, four for each of 16 rows at a time.
//
// They stay pairs of int16 until the group ends. Of bytes below 16 a group's sum is at most
// 16 * 15 * 127 = 30480. Full bytes are multiplied by the nibbles of x, 16 * high + low with high
// from -8 to 8 and low from -8 to 7: at most 16 * 255 * 8 = 32640.
struct SmallDots {
  __m256i low, high;
};
struct FullDots {
  SmallDots by_high, by_low;
};

inline __m256i broadcast_four(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm256_set1_epi32(four);
}
inline void start(SmallDots& dots, int32_t) {
  dots = {_mm256_setzero_si256(), _mm256_setzero_si256()};
}
inline void start(FullDots& dots, int32_t first) {
  start(dots.by_high, first);
  start(dots.by_low, first);
}
inline void dot_small(SmallDots& dots, Bytes rows, const int8_t* x) {
  __m256i four = broadcast_four(x);
  dots.low = _mm256_add_epi16(dots.low, _mm256_maddubs_epi16(rows.low, four));
  dots.high = _mm256_add_epi16(dots.high, _mm256_maddubs_epi16(rows.high, four));
  asm("" : "+x"(dots.low), "+x"(dots.high));
}
inline void dot_full(FullDots& dots, Bytes rows, const int8_t* x) {
  dot_small(dots.by_high, rows, x);
  dot_small(dots.by_low, rows, x + 32);
}
inline I32 widened(const SmallDots& dots, int factor) {
  __m256i factors = _mm256_set1_epi16(static_cast<int16_t>(factor));
  return {_mm256_madd_epi16(dots.low, factors), _mm256_madd_epi16(dots.high, factors)};
}
inline I32 total(const SmallDots& dots, int32_t first) {
  return int_add(widened(dots, 1), int_broadcast(first));
}
inline I32 total(const FullDots& dots, int32_t first) {
  return int_add(widened(dots.by_high, 16), total(dots.by_low, first));
}

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
