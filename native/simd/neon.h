// Sixteen lanes in four NEON registers: the same operations as simd/avx512.h, and the same bits.
// Needs the dot product of ARMv8.2.
#pragma once

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

namespace {

struct F32 {
  float32x4_t v[4];
};
struct I32 {
  int32x4_t v[4];
};
struct Bytes {
  uint8x16_t v[4];
};

constexpr int kLanes = 16;
constexpr int kDirectRows = 3;
constexpr int kDirectPasses = 2;
constexpr int kTileRows = 3;  // sums and dots of three rows fill 24 of 32 registers
constexpr int kFloatTileRows = 2;
constexpr int kFloatTilePanels = 2;
constexpr int kReadTiles = 1;  // tiles of queries up to which keys are read where they lie
constexpr int kByteOffset = 0;  // dot_full makes bytes signed, so nothing is left to subtract
constexpr bool kSplitsInputs = false;

// One operation on each of the four registers.
template <class Out, class Function>
inline Out each(const Function& function) {
  return {{function(0), function(1), function(2), function(3)}};
}

inline F32 broadcast(float x) {
  return each<F32>([&](int) { return vdupq_n_f32(x); });
}
inline F32 zeros() { return broadcast(0.0f); }
inline F32 load(const float* p) {
  return each<F32>([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline F32 load_first(const float* p, int count) {
  float kept[kLanes] = {};
  __builtin_memcpy(kept, p, static_cast<size_t>(count) * sizeof(float));
  return load(kept);
}
inline void store(float* p, F32 x) {
  for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, x.v[i]);
}
inline void store_first(float* p, F32 x, int count) {
  float kept[kLanes];
  store(kept, x);
  __builtin_memcpy(p, kept, static_cast<size_t>(count) * sizeof(float));
}
inline F32 keep_first(F32 x, int count, F32 filler) {
  float kept[kLanes];
  store(kept, filler);
  store_first(kept, x, count);
  return load(kept);
}

inline F32 load_f16(const uint16_t* p) {
  return each<F32>([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline F32 load_f16_first(const uint16_t* p, int count) {
  uint16_t kept[kLanes] = {};
  for (int i = 0; i < count; i++) kept[i] = p[i];
  return load_f16(kept);
}
inline void store_f16(uint16_t* p, F32 x) {
  for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
inline void store_f16_first(uint16_t* p, F32 x, int count) {
  uint16_t kept[kLanes];
  store_f16(kept, x);
  for (int i = 0; i < count; i++) p[i] = kept[i];
}
inline F32 load_bf16(const uint16_t* p) {
  return each<F32>(
      [&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
inline F32 load_int8(const int8_t* p) {
  int8x16_t bytes = vld1q_s8(p);
  int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
           vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}

// Bits of a number with four exponent bits and three of mantissa are those of a float, moved, times
// a power of two; denormal ones too.
inline float32x4_t of_e4m3(uint16x4_t narrow) {
  uint32x4_t x = vmovl_u16(narrow);
  uint32x4_t size = vshlq_n_u32(vandq_u32(x, vdupq_n_u32(0x7f)), 20);
  uint32x4_t sign = vshlq_n_u32(vandq_u32(x, vdupq_n_u32(0x80)), 24);
  return vmulq_f32(vreinterpretq_f32_u32(vorrq_u32(size, sign)), vdupq_n_f32(0x1p120f));
}
inline F32 load_e4m3(const uint8_t* p) {
  uint8x16_t bytes = vld1q_u8(p);
  uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
  return {{of_e4m3(vget_low_u16(low)), of_e4m3(vget_high_u16(low)), of_e4m3(vget_low_u16(high)),
           of_e4m3(vget_high_u16(high))}};
}

inline F32 add(F32 a, F32 b) {
  return each<F32>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline F32 sub(F32 a, F32 b) {
  return each<F32>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
inline F32 mul(F32 a, F32 b) {
  return each<F32>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline F32 div(F32 a, F32 b) {
  return each<F32>([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
inline F32 fma(F32 a, F32 b, F32 c) {
  return each<F32>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
inline F32 max_of(F32 a, F32 b) {  // not vmaxq, which keeps NaN of either side
  return each<F32>([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline F32 min_of(F32 a, F32 b) {
  return each<F32>([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline F32 round_even(F32 x) {
  return each<F32>([&](int i) { return vrndnq_f32(x.v[i]); });
}

inline I32 int_broadcast(int32_t x) {
  return each<I32>([&](int) { return vdupq_n_s32(x); });
}
inline I32 int_zeros() { return int_broadcast(0); }
inline I32 int_add(I32 a, I32 b) {
  return each<I32>([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
inline I32 int_max(I32 a, I32 b) {
  return each<I32>([&](int i) { return vmaxq_s32(a.v[i], b.v[i]); });
}
inline I32 int_and(I32 a, I32 b) {
  return each<I32>([&](int i) { return vandq_s32(a.v[i], b.v[i]); });
}
inline I32 shift_to_exponent(I32 x) {
  return each<I32>([&](int i) { return vshlq_n_s32(x.v[i], 23); });
}
inline I32 bits_of(F32 x) {
  return each<I32>([&](int i) { return vreinterpretq_s32_f32(x.v[i]); });
}
inline F32 of_bits(I32 x) {
  return each<F32>([&](int i) { return vreinterpretq_f32_s32(x.v[i]); });
}
inline F32 to_float(I32 x) {
  return each<F32>([&](int i) { return vcvtq_f32_s32(x.v[i]); });
}
inline I32 to_int(F32 x) {  // half to even
  return each<I32>([&](int i) { return vcvtnq_s32_f32(x.v[i]); });
}
inline void store_int8(int8_t* p, I32 x) {
  int16x8_t low = vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1]));
  int16x8_t high = vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3]));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

// Halves, quarters, pairs, in the order of simd/avx512.h.
inline float sum_lanes(F32 x) {
  float32x4_t q = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
  float32x2_t pair = vadd_f32(vget_low_f32(q), vget_high_f32(q));
  return vget_lane_f32(pair, 0) + vget_lane_f32(pair, 1);
}
inline float max_lanes(F32 x) {
  float kept[kLanes];
  store(kept, x);
  float most = kept[0];
  for (int i = 1; i < kLanes; i++) most = kept[i] > most ? kept[i] : most;
  return most;
}
inline int32_t int_sum_lanes(I32 x) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(x.v[0], x.v[1]), vaddq_s32(x.v[2], x.v[3])));
}
inline int32_t int_max_lanes(I32 x) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.v[0], x.v[1]), vmaxq_s32(x.v[2], x.v[3])));
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
  for (float one : kept)
    if (!(one >= low && one <= high)) return false;
  return true;
}
inline bool any_equal(F32 a, F32 b) {
  uint32x4_t any = vceqq_f32(a.v[0], b.v[0]);
  for (int i = 1; i < 4; i++) any = vorrq_u32(any, vceqq_f32(a.v[i], b.v[i]));
  return vmaxvq_u32(any) != 0;
}

// Sums of whole numbers, exact in any order, so lanes may be folded.
using F64 = float64x2_t;
inline F64 double_zeros() { return vdupq_n_f64(0.0); }
inline F64 double_add(F64 sum, F32 x) {
  for (int i = 0; i < 4; i++) {
    sum = vaddq_f64(sum, vcvt_f64_f32(vget_low_f32(x.v[i])));
    sum = vaddq_f64(sum, vcvt_high_f64_f32(x.v[i]));
  }
  return sum;
}
inline double double_sum_lanes(F64 x) { return vaddvq_f64(x); }

inline Bytes load_bytes(const uint8_t* p) {
  return each<Bytes>([&](int i) { return vld1q_u8(p + 16 * i); });
}
inline void store_bytes(uint8_t* p, Bytes x) {
  for (int i = 0; i < 4; i++) vst1q_u8(p + 16 * i, x.v[i]);
}
inline Bytes low_nibbles(Bytes x) {
  return each<Bytes>([&](int i) { return vandq_u8(x.v[i], vdupq_n_u8(15)); });
}
inline Bytes high_nibbles(Bytes x) {
  return each<Bytes>([&](int i) { return vshrq_n_u8(x.v[i], 4); });
}

inline int8x16_t broadcast_four(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(four));
}
struct Dots {
  I32 sum;
};
using SmallDots = Dots;
using FullDots = Dots;
inline void start(Dots& dots, int32_t first) { dots.sum = int_broadcast(first); }
inline I32 total(const Dots& dots, int32_t) { return dots.sum; }
inline void dot_small(Dots& dots, Bytes rows, const int8_t* x) {
  int8x16_t four = broadcast_four(x);
  dots.sum = each<I32>(
      [&](int i) { return vdotq_s32(dots.sum.v[i], vreinterpretq_s8_u8(rows.v[i]), four); });
}
inline void dot_full(Dots& dots, Bytes rows, const int8_t* x) {
  uint8x16_t middle = vdupq_n_u8(128);
  dot_small(dots, each<Bytes>([&](int i) { return veorq_u8(rows.v[i], middle); }), x);
}

inline void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace
