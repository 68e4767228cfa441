// Rows of activations times panels of a packed weight: the heart of every linear.
//
// Order of summation, whatever the number of rows: for each output the groups of 32 columns in
// turn. Inside a group the products are integers, so their order cannot matter; then
// sum = fma(dot, weight scale * activation scale, sum), and for affine weights
// sum = fma(minimum, scaled sum of activations, sum). Where halves of a group have scales of their
// own, one half after the other. Float weights: sum = fma(weight, activation, sum), column by
// column.
#pragma once

#include <type_traits>

#include "activations.h"
#include "panel.h"

namespace {

// Outputs of one call: rows so far apart, 16 per panel.
constexpr int64_t kResultStride = kPanelRows;
constexpr int64_t kFloatResultStride = kFloatTilePanels * kPanelRows;

constexpr int64_t result_stride(int64_t kind) {
  return is_integer(kind) ? kResultStride : kFloatResultStride;
}

constexpr int64_t kPrefetchBytes = 3072;  // ahead of what is read: 2 to 4 KB measured alike

constexpr int64_t panels_per_unit(int64_t kind) { return is_integer(kind) ? 1 : kFloatTilePanels; }

// Where the outputs of the first row will be written, and how far rows lie apart. A tile of many
// rows has them near when it ends; without that a fifth of a prefill's time went by waiting for
// them.
struct Destination {
  const float* row;
  int64_t stride;
};

// ---- Few rows: weights go from memory to registers, for all rows at once or in a few passes: the
// second finds a panel in the first cache.

// What the integers of one part of a group start from: minus what is stored too high.
template <int kKind>
inline int32_t first_sum(const QuantizedGroup& x, int part) {
  if (kKind == CW_Q8_HALVES) return -kByteOffset * x.half_sums[part];
  if (has_bytes(kKind)) return x.minus_full;
  if (kKind == CW_Q4) return x.minus_8;
  return 0;
}

// What the minimum of one part is multiplied by.
template <int kKind>
inline F32 times_minimum(const QuantizedGroup& x, int part) {
  if (num_parts(kKind) == 1) return broadcast(x.scaled_sum);
  return broadcast(x.scale * static_cast<float>(x.half_sums[part]));
}

template <int kKind>
using DotsOf = std::conditional_t<has_bytes(kKind), FullDots, SmallDots>;

template <int kKind>
inline void dot(DotsOf<kKind>& dots, Bytes rows, const int8_t* four) {
  if constexpr (has_bytes(kKind))
    dot_full(dots, rows, four);
  else
    dot_small(dots, rows, four);
}

// Rounded rows of a tile, from some group on.
struct Inputs {
  const QuantizedGroup* groups;
  const SplitGroup* splits;  // or null

  Inputs from(int64_t group) const { return {groups + group, splits ? splits + group : nullptr}; }
};

template <int kKind>
constexpr bool kUsesSplits = has_bytes(kKind) && kSplitsInputs;

// What a row of the tile multiplies the first bytes by.
template <int kKind>
inline const int8_t* factors(const Inputs& x, int row) {
  return kUsesSplits<kKind> ? x.splits[row].highs : x.groups[row].quants;
}

template <int kKind>
inline void next_group(Inputs& x) {
  x.groups += kTileRows;
  if (kUsesSplits<kKind>) x.splits += kTileRows;
}

// Rows that are multiplied in one pass. Of full bytes no more than lie in one tile: each row's
// address would take a register, and their products take all.
template <int kKind>
constexpr int kPassRows = has_bytes(kKind) && kDirectRows > kTileRows ? kTileRows : kDirectRows;

// Rows that lie in one tile: one address serves them all.
template <int kKind>
struct NearRows {
  Inputs x;

  const QuantizedGroup& group(int m) const { return x.groups[m]; }
  const int8_t* bytes(int m) const { return factors<kKind>(x, m); }
  void next() { next_group<kKind>(x); }
};

// Rows of several tiles.
template <int kKind, int kRows>
struct FarRows {
  Inputs x[kRows];

  const QuantizedGroup& group(int m) const { return x[m].groups[0]; }
  const int8_t* bytes(int m) const { return factors<kKind>(x[m], 0); }
  void next() {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++) next_group<kKind>(x[m]);
  }
};

template <int kKind, int kRows, class Rows>
void multiply_direct(const uint8_t* panel, int64_t num_groups, Rows x, float* result) {
  constexpr int kParts = num_parts(kKind);
  constexpr int kWords = has_bytes(kKind) ? 8 / kParts : 4;  // of 64 bytes that a part passes over
  F32 sums[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++) sums[m] = zeros();
  for (int64_t g = 0; g < num_groups; g++, panel += group_bytes(kKind), x.next()) {
    const uint8_t* quants = panel + group_bytes(kKind) - quant_bytes(kKind);
    for (int i = 0; i < group_bytes(kKind); i += 64) prefetch(panel + kPrefetchBytes + i);
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(panel);
#pragma GCC unroll 2
    for (int part = 0; part < kParts; part++) {
      DotsOf<kKind> dots[kRows];
#pragma GCC unroll 16
      for (int m = 0; m < kRows; m++) start(dots[m], first_sum<kKind>(x.group(m), part));
#pragma GCC unroll 8
      for (int i = 0; i < kWords; i++) {
        int v = part * kWords + i;
        if (has_bytes(kKind)) {
          Bytes bytes = load_bytes(quants + 64 * v);
#pragma GCC unroll 16
          for (int m = 0; m < kRows; m++) dot<kKind>(dots[m], bytes, x.bytes(m) + 4 * v);
        } else if (kParts == 2) {
          Bytes both = load_bytes(quants + 64 * i);
          Bytes bytes = part ? high_nibbles(both) : low_nibbles(both);
#pragma GCC unroll 16
          for (int m = 0; m < kRows; m++) dot<kKind>(dots[m], bytes, x.bytes(m) + 4 * v);
        } else {
          Bytes both = load_bytes(quants + 64 * v);
          Bytes low = low_nibbles(both), high = high_nibbles(both);
#pragma GCC unroll 16
          for (int m = 0; m < kRows; m++) {
            const int8_t* four = x.bytes(m) + 4 * v;
            dot<kKind>(dots[m], low, four);
            dot<kKind>(dots[m], high, four + 16);
          }
        }
      }
      F32 scale = load_f16(scales + kPanelRows * part);
      F32 minimum = is_affine(kKind) ? load_f16(scales + kPanelRows * (kParts + part)) : zeros();
#pragma GCC unroll 16
      for (int m = 0; m < kRows; m++) {
        const QuantizedGroup& one = x.group(m);
        F32 both = mul(scale, broadcast(one.scale));
        F32 product = to_float(total(dots[m], first_sum<kKind>(one, part)));
        sums[m] = fma(product, both, sums[m]);
        if (is_affine(kKind)) sums[m] = fma(minimum, times_minimum<kKind>(one, part), sums[m]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++) store(result + m * kResultStride, sums[m]);
}

// ---- Many rows: a block of groups is unpacked to bytes once, then tiles of rows pass over it.

constexpr int64_t kBlockGroups = 18;  // 12 KB unpacked: fits the first cache beside the rows

template <int kParts>
struct Unpacked {
  uint8_t quants[8][64];
  float scales[kParts][kPanelRows];
  float minima[kParts][kPanelRows];
};

template <int kKind>
using UnpackedOf = Unpacked<num_parts(kKind)>;

template <int kKind>
void unpack_groups(const uint8_t* panel, int64_t num_groups, UnpackedOf<kKind>* out) {
  constexpr int kParts = num_parts(kKind);
  for (int64_t g = 0; g < num_groups; g++, out++, panel += group_bytes(kKind)) {
    const uint8_t* quants = panel + group_bytes(kKind) - quant_bytes(kKind);
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel);
    for (int part = 0; part < kParts; part++, halves += kPanelRows) {
      store(out->scales[part], load_f16(halves));
      if (is_affine(kKind)) store(out->minima[part], load_f16(halves + kParts * kPanelRows));
    }
    for (int v = 0; v < quant_bytes(kKind) / 64; v++) {
      Bytes bytes = load_bytes(quants + 64 * v);
      store_bytes(out->quants[v], has_bytes(kKind) ? bytes : low_nibbles(bytes));
      if (!has_bytes(kKind)) store_bytes(out->quants[v + 4], high_nibbles(bytes));
    }
  }
}

// Meanwhile lines_per_group lines of what is unpacked next come near.
template <int kKind, int kRows>
void multiply_tile(const UnpackedOf<kKind>* weights, int64_t num_groups, Inputs x, float* result,
                   const uint8_t* next, int64_t lines_per_group) {
  constexpr int kParts = num_parts(kKind), kWords = 8 / kParts;
  F32 sums[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++) sums[m] = load(result + m * kResultStride);
  for (int64_t g = 0; g < num_groups; g++, weights++, next_group<kKind>(x)) {
    for (int64_t i = 0; i < lines_per_group; i++, next += 64) prefetch(next);
#pragma GCC unroll 2
    for (int part = 0; part < kParts; part++) {
      DotsOf<kKind> dots[kRows];
#pragma GCC unroll 16
      for (int m = 0; m < kRows; m++) start(dots[m], first_sum<kKind>(x.groups[m], part));
#pragma GCC unroll 8
      for (int v = part * kWords; v < (part + 1) * kWords; v++) {
        Bytes rows = load_bytes(weights->quants[v]);
#pragma GCC unroll 16
        for (int m = 0; m < kRows; m++) dot<kKind>(dots[m], rows, factors<kKind>(x, m) + 4 * v);
      }
      F32 scale = load(weights->scales[part]);
      F32 minimum = is_affine(kKind) ? load(weights->minima[part]) : zeros();
#pragma GCC unroll 16
      for (int m = 0; m < kRows; m++) {
        const QuantizedGroup& one = x.groups[m];
        F32 both = mul(scale, broadcast(one.scale));
        F32 product = to_float(total(dots[m], first_sum<kKind>(one, part)));
        sums[m] = fma(product, both, sums[m]);
        if (is_affine(kKind)) sums[m] = fma(minimum, times_minimum<kKind>(one, part), sums[m]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++) store(result + m * kResultStride, sums[m]);
}

// Calls body with the largest tile that fits, as a compile-time number of rows, until all are done.
template <int kRows, class Body>
inline void tile_rows(int64_t num_rows, int64_t row, const Body& body) {
  for (; num_rows - row >= kRows; row += kRows) body.template run<kRows>(row);
  if constexpr (kRows > 1) {
    if (row < num_rows) tile_rows<kRows - 1>(num_rows, row, body);
  }
}

template <int kKind>
struct MultiplyTiles {
  const UnpackedOf<kKind>* weights;
  int64_t num_groups;
  Inputs x;  // of the first tile
  int64_t groups_per_row;
  float* result;
  const uint8_t* next;  // num_groups * kLines lines
  int64_t num_tiles;
  Destination destination;

  static constexpr int64_t kLines = (group_bytes(kKind) + 63) / 64;

  template <int kRows>
  void run(int64_t row) const {
    // Tiles share the lines that come near; when there are more tiles than lines, the first ones.
    for (int m = 0; m < kRows; m++) prefetch(destination.row + (row + m) * destination.stride);
    int64_t tile = row / kTileRows, lines = ceil_div(kLines, num_tiles);
    const uint8_t* part = next + tile * lines * num_groups * 64;
    multiply_tile<kKind, kRows>(weights, num_groups, x.from(row * groups_per_row),
                                result + row * kResultStride, part,
                                tile * lines < kLines ? lines : 0);
  }
};

template <int kKind>
struct MultiplyDirect {
  const uint8_t* panel;
  int64_t num_groups;
  Inputs x;  // from the first row of a tile on
  float* result;

  template <int kRows>
  void run(int64_t row) const {
    float* out = result + row * kResultStride;
    if constexpr (kPassRows<kKind> > kTileRows) {
      if (row % kTileRows + kRows > kTileRows) {
        FarRows<kKind, kRows> rows;
#pragma GCC unroll 16
        for (int m = 0; m < kRows; m++) rows.x[m] = x.from(tiled(row + m, 0, num_groups));
        return multiply_direct<kKind, kRows>(panel, num_groups, rows, out);
      }
    }
    NearRows<kKind> rows{x.from(tiled(row, 0, num_groups))};
    multiply_direct<kKind, kRows>(panel, num_groups, rows, out);
  }
};

template <int kKind>
void multiply_unpacked(const uint8_t* panel, int64_t num_groups, const Inputs& x, int64_t num_rows,
                       float* result, UnpackedOf<kKind>* weights, const Destination& destination) {
  for (int64_t m = 0; m < num_rows; m++) store(result + m * kResultStride, zeros());
  int64_t num_blocks = ceil_div(num_groups, kBlockGroups);
  for (int64_t block = 0; block < num_blocks; block++) {
    int64_t begin = num_groups * block / num_blocks;
    int64_t count = num_groups * (block + 1) / num_blocks - begin;
    const uint8_t* start = panel + begin * group_bytes(kKind);
    unpack_groups<kKind>(start, count, weights);
    // The same groups of the next panel come near while tiles pass over these.
    const uint8_t* next = start + num_groups * group_bytes(kKind);
    tile_rows<kTileRows>(
        num_rows, 0,
        MultiplyTiles<kKind>{weights, count, x.from(begin * kTileRows), num_groups, result, next,
                             ceil_div(num_rows, kTileRows), destination});
  }
}

template <int kKind>
void multiply_integers(const uint8_t* panel, const Activations& x, int64_t row, int64_t num_rows,
                       float* result, char* memory, const Destination& destination) {
  int64_t num_groups = x.width / kGroupColumns;
  Inputs rows = Inputs{x.groups, x.splits}.from(tiled(row, 0, num_groups));
  if (num_rows <= kDirectPasses * kPassRows<kKind>) {
    tile_rows<kPassRows<kKind>>(num_rows, 0,
                                MultiplyDirect<kKind>{panel, num_groups, rows, result});
  } else {
    multiply_unpacked<kKind>(panel, num_groups, rows, num_rows, result,
                             reinterpret_cast<UnpackedOf<kKind>*>(memory), destination);
  }
}

constexpr size_t kIntegerProductBytes = kBlockGroups * sizeof(Unpacked<2>);

}  // namespace
