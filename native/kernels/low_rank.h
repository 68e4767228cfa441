// What adapters add to the outputs of a linear: up * (down * x), a pair for each row's own adapter.
//
// Order of summation, whatever the number of rows: down * x column by column in 16 lanes, which are
// then summed; after that the outputs one rank after the other, on top of the base product.
#pragma once

#include "panel.h"
#include "share.h"

namespace {

template <int kKind>
inline F32 load_column(const uint8_t* column) {
  if (kKind == CW_F16) return load_f16(reinterpret_cast<const uint16_t*>(column));
  if (kKind == CW_BF16) return load_bf16(reinterpret_cast<const uint16_t*>(column));
  return load(reinterpret_cast<const float*>(column));
}

// The pairs of a linear's segments in a step; off where no row has an adapter.
struct LowRank {
  const cw_pair* pairs;     // [adapters, segments], or null
  const int64_t* adapters;  // [rows] of each, or -1
  int64_t num_segments;
  int64_t most_rank;

  LowRank() : pairs(nullptr), adapters(nullptr), num_segments(0), most_rank(0) {}
  LowRank(const cw_pairs& p, int64_t segments, const cw_step& step)
      : pairs(step.adapters ? p.pairs : nullptr),
        adapters(step.adapters),
        num_segments(segments),
        most_rank(p.most_rank) {}

  int64_t width() const { return pairs ? num_segments * most_rank : 0; }

  // The pair of a row in a segment; null where its adapter adds nothing there.
  const cw_pair* of(int64_t row, int64_t segment) const {
    if (adapters[row] < 0) return nullptr;
    const cw_pair& pair = pairs[adapters[row] * num_segments + segment];
    return pair.rank ? &pair : nullptr;
  }
};

template <int kKind>
inline void narrow(const cw_pair& pair, const float* x, int64_t width, float* out) {
  int64_t stride = ceil_div(width, kLanes) * kLanes * float_bytes(kKind);
  for (int64_t r = 0; r < pair.rank; r++) {
    const uint8_t* row = pair.down + r * stride;
    F32 even = zeros(), odd = zeros();
    int64_t k = 0;
    for (; k + 2 * kLanes <= width; k += 2 * kLanes) {
      even = fma(load_column<kKind>(row + k * float_bytes(kKind)), load(x + k), even);
      odd = fma(load_column<kKind>(row + (k + kLanes) * float_bytes(kKind)), load(x + k + kLanes),
                odd);
    }
    for (; k < width; k += kLanes) {
      F32 part = load_first(x + k, static_cast<int>(least(kLanes, width - k)));
      even = fma(load_column<kKind>(row + k * float_bytes(kKind)), part, even);
    }
    out[r] = sum_lanes(add(even, odd));
  }
}

// down * x of one row for each segment. Shapes: x [width] -> out [segments, most_rank].
inline void narrow_row(const LowRank& low, int64_t row, const float* x, int64_t width, float* out) {
  for (int64_t s = 0; s < low.num_segments; s++) {
    const cw_pair* pair = low.of(row, s);
    if (!pair) continue;
    float* to = out + s * low.most_rank;
    if (pair->up.kind == CW_F16)
      narrow<CW_F16>(*pair, x, width, to);
    else if (pair->up.kind == CW_BF16)
      narrow<CW_BF16>(*pair, x, width, to);
    else
      narrow<CW_F32>(*pair, x, width, to);
  }
}

template <int kKind>
inline void widen_panel(const cw_pair& pair, int64_t panel, const float* narrowed, float* result) {
  const uint8_t* column = panel_of(pair.up, panel);
  F32 sum = load(result);
  for (int64_t r = 0; r < pair.rank; r++, column += kPanelRows * float_bytes(kKind))
    sum = fma(load_column<kKind>(column), broadcast(narrowed[r]), sum);
  store(result, sum);
}

// Adds to products of some rows with some panels of a segment, rows stride apart.
inline void widen(const LowRank& low, const float* narrowed, int64_t segment, int64_t panel,
                  int64_t count, int64_t row, int64_t num_rows, float* result, int64_t stride) {
  if (!low.pairs) return;
  for (int64_t m = 0; m < num_rows; m++) {
    const cw_pair* pair = low.of(row + m, segment);
    if (!pair) continue;
    const float* own = narrowed + (row + m) * low.width() + segment * low.most_rank;
    for (int64_t p = 0; p < count; p++) {
      float* to = result + m * stride + p * kPanelRows;
      if (pair->up.kind == CW_F16)
        widen_panel<CW_F16>(*pair, panel + p, own, to);
      else if (pair->up.kind == CW_BF16)
        widen_panel<CW_BF16>(*pair, panel + p, own, to);
      else
        widen_panel<CW_F32>(*pair, panel + p, own, to);
    }
  }
}

}  // namespace
