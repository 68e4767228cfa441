// Sixteen lanes in plain C++: the compiler's own vectors, for CPUs that no other file knows.
//
// The same operations as simd/avx512.h, and the same bits. Where the CPU has no fused multiply-add
// the C library's is called: slow, and exact.
#pragma once

#include <math.h>
#include <stdint.h>

#include "../runtime/half.h"

namespace {

typedef float F32 __attribute__((vector_size(64)));
typedef int32_t I32 __attribute__((vector_size(64)));
typedef uint8_t Bytes __attribute__((vector_size(64)));

constexpr int kLanes = 16;
constexpr int kDirectRows = 4;
constexpr int kDirectPasses = 1;
constexpr int kTileRows = 4;
constexpr int kFloatTileRows = 2;
constexpr int kFloatTilePanels = 2;
constexpr int kReadTiles = 0;  // tiles of queries up to which keys are read where they lie
constexpr int kByteOffset = 128;
constexpr bool kSplitsInputs = false;

inline F32 zeros() { return F32{}; }
inline F32 broadcast(float x) { return F32{} + x; }
inline F32 load(const float* p) {
  F32 x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
inline F32 load_first(const float* p, int count) {
  F32 x{};
  __builtin_memcpy(&x, p, static_cast<size_t>(count) * sizeof(float));
  return x;
}
inline void store(float* p, F32 x) { __builtin_memcpy(p, &x, sizeof x); }
inline void store_first(float* p, F32 x, int count) {
  __builtin_memcpy(p, &x, static_cast<size_t>(count) * sizeof(float));
}
inline F32 keep_first(F32 x, int count, F32 filler) {
  for (int i = count; i < kLanes; i++) x[i] = filler[i];
  return x;
}

inline F32 load_f16_first(const uint16_t* p, int count) {
  F32 x{};
  for (int i = 0; i < count; i++) x[i] = from_f16(p[i]);
  return x;
}
inline F32 load_f16(const uint16_t* p) { return load_f16_first(p, kLanes); }
inline void store_f16_first(uint16_t* p, F32 x, int count) {
  for (int i = 0; i < count; i++) p[i] = to_f16(x[i]);
}
inline void store_f16(uint16_t* p, F32 x) { store_f16_first(p, x, kLanes); }
inline F32 load_bf16(const uint16_t* p) {
  F32 x;
  for (int i = 0; i < kLanes; i++) x[i] = from_bf16(p[i]);
  return x;
}
inline F32 load_int8(const int8_t* p) {
  F32 x;
  for (int i = 0; i < kLanes; i++) x[i] = p[i];
  return x;
}

// Bits of a number with four exponent bits and three of mantissa are those of a float, moved, times
// a power of two; denormal ones too.
inline F32 load_e4m3(const uint8_t* p) {
  F32 x;
  for (int i = 0; i < kLanes; i++) {
    uint32_t bits = static_cast<uint32_t>(p[i] & 0x7f) << 20 | static_cast<uint32_t>(p[i] & 0x80) << 24;
    float moved;
    __builtin_memcpy(&moved, &bits, 4);
    x[i] = moved * 0x1p120f;
  }
  return x;
}

inline F32 add(F32 a, F32 b) { return a + b; }
inline F32 sub(F32 a, F32 b) { return a - b; }
inline F32 mul(F32 a, F32 b) { return a * b; }
inline F32 div(F32 a, F32 b) { return a / b; }
inline F32 fma(F32 a, F32 b, F32 c) {
  for (int i = 0; i < kLanes; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
}
inline F32 max_of(F32 a, F32 b) { return a > b ? a : b; }
inline F32 min_of(F32 a, F32 b) { return a < b ? a : b; }
inline F32 round_even(F32 x) {
  for (int i = 0; i < kLanes; i++) x[i] = rintf(x[i]);
  return x;
}

inline I32 int_zeros() { return I32{}; }
inline I32 int_broadcast(int32_t x) { return I32{} + x; }
inline I32 int_add(I32 a, I32 b) { return a + b; }
inline I32 int_max(I32 a, I32 b) { return a > b ? a : b; }
inline I32 int_and(I32 a, I32 b) { return a & b; }
inline I32 shift_to_exponent(I32 x) { return x << 23; }
inline I32 bits_of(F32 x) {
  I32 bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline F32 of_bits(I32 x) {
  F32 out;
  __builtin_memcpy(&out, &x, sizeof out);
  return out;
}
inline F32 to_float(I32 x) { return __builtin_convertvector(x, F32); }
// What does not fit, NaN too, becomes the least integer, as vector units have it.
inline I32 to_int(F32 x) {
  I32 out;
  for (int i = 0; i < kLanes; i++) {
    bool fits = x[i] >= -2147483648.0f && x[i] < 2147483648.0f;
    out[i] = fits ? static_cast<int32_t>(rintf(x[i])) : INT32_MIN;
  }
  return out;
}
inline void store_int8(int8_t* p, I32 x) {
  for (int i = 0; i < kLanes; i++) p[i] = static_cast<int8_t>(x[i]);
}

inline float sum_lanes(F32 x) {
  float kept[kLanes];
  store(kept, x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) kept[i] = kept[i] + kept[i + half];
  return kept[0];
}
inline float max_lanes(F32 x) {
  float most = x[0];
  for (int i = 1; i < kLanes; i++) most = x[i] > most ? x[i] : most;
  return most;
}
inline int32_t int_sum_lanes(I32 x) {
  uint32_t sum = 0;
  for (int i = 0; i < kLanes; i++) sum += static_cast<uint32_t>(x[i]);
  return static_cast<int32_t>(sum);
}
inline int32_t int_max_lanes(I32 x) {
  int32_t most = x[0];
  for (int i = 1; i < kLanes; i++) most = x[i] > most ? x[i] : most;
  return most;
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
  for (int i = 0; i < kLanes; i++)
    if (a[i] == b[i]) return true;
  return false;
}

using F64 = double;  // a sum of whole numbers, exact in any order
inline F64 double_zeros() { return 0.0; }
inline F64 double_add(F64 sum, F32 x) {
  for (int i = 0; i < kLanes; i++) sum += static_cast<double>(x[i]);
  return sum;
}
inline double double_sum_lanes(F64 x) { return x; }

inline Bytes load_bytes(const uint8_t* p) {
  Bytes x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
inline void store_bytes(uint8_t* p, Bytes x) { __builtin_memcpy(p, &x, sizeof x); }
inline Bytes low_nibbles(Bytes x) { return x & 15; }
inline Bytes high_nibbles(Bytes x) { return x >> 4; }

struct Dots {
  I32 sum;
};
using SmallDots = Dots;
using FullDots = Dots;
inline void start(Dots& dots, int32_t first) { dots.sum = int_broadcast(first); }
inline I32 total(const Dots& dots, int32_t) { return dots.sum; }
inline void dot_full(Dots& dots, Bytes rows, const int8_t* x) {
  for (int i = 0; i < kLanes; i++)
    for (int k = 0; k < 4; k++) dots.sum[i] += static_cast<int32_t>(rows[4 * i + k]) * x[k];
}
inline void dot_small(Dots& dots, Bytes rows, const int8_t* x) { dot_full(dots, rows, x); }

inline void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace
