// Blocks of GGUF files as integers and scales, in the form in which packed groups keep them.
//
// Source: the structs and dequantize_row functions of ggml (ggml-common.h, ggml-quants.c).
#pragma once

#include <math.h>
#include <string.h>

#include "../kernels/panel.h"
#include "half.h"

namespace {

// 32 columns of one row. Bytes hold q + 128, nibbles q; halves have two scales and minima.
struct Group {
  uint8_t quants[kGroupColumns];
  float scales[2];
  float minima[2];
};

struct BlockType {
  int64_t groups;  // of 32 values
  int64_t bytes;
  int64_t kind;  // that holds its integers
};

// Indexed by what comes after CW_FROM_BF16.
constexpr BlockType kBlockTypes[] = {
    {1, 34, CW_Q8},         {1, 18, CW_Q4},         {1, 20, CW_Q4_AFFINE},  {1, 22, CW_Q8},
    {1, 24, CW_Q8_AFFINE},  {8, 84, CW_Q4_HALVES},  {8, 110, CW_Q4_HALVES}, {8, 144, CW_Q4_AFFINE},
    {8, 176, CW_Q8_AFFINE}, {8, 210, CW_Q8_HALVES}, {1, 18, CW_Q8},         {8, 136, CW_Q8},
    {1, 17, CW_Q8},
};
static_assert(sizeof kBlockTypes / sizeof *kBlockTypes == CW_FROM_MXFP4 - CW_FROM_BF16, "one each");

inline const BlockType& block_type(int64_t source_type) {
  return kBlockTypes[source_type - CW_FROM_Q8_0];
}

inline float half_in(const uint8_t* at) {
  uint16_t half;
  memcpy(&half, at, 2);
  return from_f16(half);
}

inline int nibble(const uint8_t* bytes, int column) {  // low ones of 16 bytes, then high ones
  return column < 16 ? bytes[column] & 15 : bytes[column - 16] >> 4;
}

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
// Twice the numbers of e2m1; scales are half as large.
constexpr int8_t kE2m1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline void named_values(const uint8_t* nibbles, const int8_t* values, Group* out) {
  for (int c = 0; c < 32; c++)
    out->quants[c] = static_cast<uint8_t>(values[nibble(nibbles, c)] + 128);
}

// Five bits: a nibble and one bit of 32.
inline void five_bits(const uint8_t* high, const uint8_t* nibbles, int above, Group* out) {
  uint32_t bits;
  memcpy(&bits, high, 4);
  for (int c = 0; c < 32; c++) {
    int fifth = static_cast<int>(bits >> c & 1) << 4;
    out->quants[c] = static_cast<uint8_t>((nibble(nibbles, c) | fifth) + above);
  }
}

// Scale and minimum of group g of Q4_K and Q5_K, of six bits each.
inline void six_bits(const uint8_t* block, int g, Group* out) {
  const uint8_t* s = block + 4;
  int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
  int minimum = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6) << 4;
  out->scales[0] = half_in(block) * static_cast<float>(scale);
  out->minima[0] = -(half_in(block + 2) * static_cast<float>(minimum));
}

inline void read_q2_k(const uint8_t* block, int g, Group* out) {
  float scale = half_in(block + 80), minimum = half_in(block + 82);
  const uint8_t* quants = block + 16 + g / 4 * 32;
  for (int c = 0; c < 32; c++) out->quants[c] = quants[c] >> 2 * (g % 4) & 3;
  for (int half = 0; half < 2; half++) {
    int both = block[2 * g + half];
    out->scales[half] = scale * static_cast<float>(both & 15);
    out->minima[half] = -(minimum * static_cast<float>(both >> 4));
  }
}

inline void read_q3_k(const uint8_t* block, int g, Group* out) {
  const uint8_t *quants = block + 32 + g / 4 * 32, *scales = block + 96;
  for (int c = 0; c < 32; c++) {
    int q = (quants[c] >> 2 * (g % 4) & 3) | (block[c] >> g & 1) << 2;
    out->quants[c] = static_cast<uint8_t>(q + 4);  // q - 4, counted from -8
  }
  for (int half = 0; half < 2; half++) {
    int i = 2 * g + half;
    int low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;
    int high = scales[8 + i % 4] >> 2 * (i / 4) & 3;
    out->scales[half] = half_in(block + 108) * static_cast<float>((low | high << 4) - 32);
    out->minima[half] = -8 * from_f16(to_f16(out->scales[half]));
  }
}

inline void read_q4_k(const uint8_t* block, int g, Group* out) {
  const uint8_t* quants = block + 16 + g / 2 * 32;
  for (int c = 0; c < 32; c++) out->quants[c] = g % 2 ? quants[c] >> 4 : quants[c] & 15;
  six_bits(block, g, out);
}

inline void read_q5_k(const uint8_t* block, int g, Group* out) {
  const uint8_t *high = block + 16, *quants = block + 48 + g / 2 * 32;
  for (int c = 0; c < 32; c++) {
    int low = g % 2 ? quants[c] >> 4 : quants[c] & 15;
    out->quants[c] = static_cast<uint8_t>((low | (high[c] >> g & 1) << 4) + 128);
  }
  six_bits(block, g, out);
}

inline void read_q6_k(const uint8_t* block, int g, Group* out) {
  const uint8_t *low = block + g / 4 * 64 + g % 2 * 32, *high = block + 128 + g / 4 * 32;
  for (int c = 0; c < 32; c++) {
    int q = (g % 4 < 2 ? low[c] & 15 : low[c] >> 4) | (high[c] >> 2 * (g % 4) & 3) << 4;
    out->quants[c] = static_cast<uint8_t>(q - 32 + 128);
  }
  for (int half = 0; half < 2; half++) {
    int scale = static_cast<int8_t>(block[192 + 2 * g + half]);
    out->scales[half] = half_in(block + 208) * static_cast<float>(scale);
  }
}

inline void read_iq4_xs(const uint8_t* block, int g, Group* out) {
  int low = block[4 + g / 2] >> 4 * (g % 2) & 15;
  int high = (block[2] | block[3] << 8) >> 2 * g & 3;
  out->scales[0] = half_in(block) * static_cast<float>((low | high << 4) - 32);
  named_values(block + 8 + 16 * g, kIq4Values, out);
}

// Group g of a block of any type but the three that move over as whole words.
inline void read_group(int64_t type, const uint8_t* block, int g, Group* out) {
  out->scales[0] = half_in(block);
  switch (type) {
    case CW_FROM_Q5_0:
      return five_bits(block + 2, block + 6, 128 - 16, out);
    case CW_FROM_Q5_1:
      out->minima[0] = half_in(block + 2);
      return five_bits(block + 4, block + 8, 128, out);
    case CW_FROM_Q2_K:
      return read_q2_k(block, g, out);
    case CW_FROM_Q3_K:
      return read_q3_k(block, g, out);
    case CW_FROM_Q4_K:
      return read_q4_k(block, g, out);
    case CW_FROM_Q5_K:
      return read_q5_k(block, g, out);
    case CW_FROM_Q6_K:
      return read_q6_k(block, g, out);
    case CW_FROM_IQ4_NL:
      return named_values(block + 2, kIq4Values, out);
    case CW_FROM_IQ4_XS:
      return read_iq4_xs(block, g, out);
    default:
      out->scales[0] = ldexpf(1.0f, block[0] - 128);
      return named_values(block + 1, kE2m1Doubled, out);
  }
}

// Writes one row of a packed group; false where a number is beyond float16.
inline bool put_group(int64_t kind, const Group& from, uint8_t* group, int64_t lane) {
  int64_t parts = num_parts(kind);
  bool fits = true;
  for (int64_t i = 0; i < parts * (is_affine(kind) ? 2 : 1); i++) {
    float number = i < parts ? from.scales[i] : from.minima[i - parts];
    uint16_t half = to_f16(number);
    fits &= (half & 0x7fff) != 0x7c00 || isinf(number);
    memcpy(group + kScaleBytes * i + 2 * lane, &half, 2);
  }
  uint8_t* quants = group + group_bytes(kind) - quant_bytes(kind) + 4 * lane;
  for (int word = 0; word < quant_bytes(kind) / 64; word++)
    for (int b = 0; b < 4; b++) {
      int c = 4 * word + b;
      quants[64 * word + b] = has_bytes(kind)
                                  ? from.quants[c]
                                  : static_cast<uint8_t>(from.quants[c] | from.quants[c + 16] << 4);
    }
  return fits;
}

}  // namespace
