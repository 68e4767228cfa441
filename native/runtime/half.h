// float16 and bfloat16 as float32 and back, bit by bit: rounded to nearest, ties to even.
#pragma once

#include <stdint.h>
#include <string.h>

namespace {

inline float float_of_bits(uint32_t bits) {
  float out;
  memcpy(&out, &bits, 4);
  return out;
}

inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

inline float from_f16(uint16_t half) {
  uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) {
    uint32_t quiet = fraction ? 0x400000u : 0;
    return float_of_bits(sign | 0x7f800000 | fraction << 13 | quiet);
  }
  if (exponent == 0) {
    float small = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // 2^-24
    return float_of_bits(sign | bits_of_float(small));
  }
  return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

inline uint16_t to_f16(float x) {
  uint32_t bits = bits_of_float(x);
  uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000)  // NaN stays NaN, quiet
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 1023));
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to infinity
  if (magnitude < 0x38800000) {
    // Below the smallest normal half: adding 0.5 rounds at 2^-24, the unit of what is left.
    float shifted = float_of_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of_float(shifted) - 0x3f000000));
  }
  uint32_t odd = magnitude >> 13 & 1;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

inline float from_bf16(uint16_t half) { return float_of_bits(static_cast<uint32_t>(half) << 16); }

inline uint16_t to_bf16(float x) {
  uint32_t bits = bits_of_float(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace
