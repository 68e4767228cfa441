// How a weight matrix is packed: panels of 16 rows, so that one register holds one column of each.
//
//   floats     panel = K columns of 16 numbers
//   integers   panel = K / 32 groups; a group = scales of 16 rows (float16), for affine kinds their
//              minima too, then the integers, four columns of 16 rows in each 64 bytes:
//     bytes    8 x 64 bytes; q + 128 in a byte, since VNNI multiplies unsigned by signed
//     nibbles  4 x 64 bytes; low ones are columns 4 v to 4 v + 3, high ones 16 columns later:
//              as in a GGUF block, so that packing moves whole words
//              Kinds with halves have scales of the first 16 columns, then of the other 16; minima
//              likewise after them.
//
// Rows past N are zeros.
#pragma once

#include "../cutaway.h"

namespace {

constexpr int64_t kPanelRows = 16;
constexpr int64_t kGroupColumns = 32;
constexpr int64_t kScaleBytes = 2 * kPanelRows;

constexpr bool is_integer(int64_t kind) { return kind >= CW_Q8; }
constexpr bool has_bytes(int64_t kind) {
  return kind == CW_Q8 || kind == CW_Q8_AFFINE || kind == CW_Q8_HALVES;
}
constexpr bool is_affine(int64_t kind) {
  return kind == CW_Q4_AFFINE || kind == CW_Q8_AFFINE || kind == CW_Q4_HALVES;
}
// Parts of a group that have a scale of their own.
constexpr int64_t num_parts(int64_t kind) {
  return kind == CW_Q8_HALVES || kind == CW_Q4_HALVES ? 2 : 1;
}

constexpr int64_t quant_bytes(int64_t kind) { return has_bytes(kind) ? 512 : 256; }
constexpr int64_t group_bytes(int64_t kind) {
  return kScaleBytes * num_parts(kind) * (is_affine(kind) ? 2 : 1) + quant_bytes(kind);
}
constexpr int64_t float_bytes(int64_t kind) { return kind == CW_F32 ? 4 : 2; }

constexpr int64_t panel_bytes(int64_t kind, int64_t num_columns) {
  return is_integer(kind) ? num_columns / kGroupColumns * group_bytes(kind)
                          : num_columns * kPanelRows * float_bytes(kind);
}
constexpr int64_t num_panels(int64_t num_rows) { return (num_rows + kPanelRows - 1) / kPanelRows; }

inline const uint8_t* panel_of(const cw_weight& weight, int64_t panel) {
  return weight.data + panel * panel_bytes(weight.kind, weight.num_columns);
}

// Each matrix of a stack is one by itself.
constexpr int64_t kStackAlignment = 64;

inline cw_weight matrix_of(const cw_stack& s, int64_t index) {
  int64_t bytes = num_panels(s.num_rows) * panel_bytes(s.kind, s.num_columns);
  int64_t stride = (bytes + kStackAlignment - 1) / kStackAlignment * kStackAlignment;
  return {s.data + index * stride, s.num_rows, s.num_columns, s.kind};
}

}  // namespace
