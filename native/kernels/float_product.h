// Rows of float activations times panels of float32, float16 or bfloat16 weights.
#pragma once

#include "product.h"

namespace {

template <int kKind, int kRows>
void multiply_floats_direct(const uint8_t* panel, int64_t num_columns, const float* x,
                            float* result) {
  constexpr int64_t kColumnBytes = kPanelRows * float_bytes(kKind);
  F32 sums[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++) sums[m] = zeros();
  for (int64_t k = 0; k < num_columns; k++, panel += kColumnBytes) {
    prefetch(panel + kPrefetchBytes);
    F32 column = load_column<kKind>(panel);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++)
      sums[m] = fma(column, broadcast(x[m * num_columns + k]), sums[m]);
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++) store(result + m * kFloatResultStride, sums[m]);
}

constexpr int64_t kBlockColumns = 96;  // 24 KB widened

template <int kRows>
void multiply_floats_tile(const float* weights, int64_t num_columns, const float* x,
                          int64_t x_stride, float* result) {
  F32 sums[kRows][kFloatTilePanels];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++)
#pragma GCC unroll 4
    for (int p = 0; p < kFloatTilePanels; p++)
      sums[m][p] = load(result + m * kFloatResultStride + p * kPanelRows);
  for (int64_t k = 0; k < num_columns; k++, weights += kFloatTilePanels * kPanelRows) {
    F32 column[kFloatTilePanels];
#pragma GCC unroll 4
    for (int p = 0; p < kFloatTilePanels; p++) column[p] = load(weights + p * kPanelRows);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++) {
      F32 one = broadcast(x[m * x_stride + k]);
#pragma GCC unroll 4
      for (int p = 0; p < kFloatTilePanels; p++) sums[m][p] = fma(column[p], one, sums[m][p]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++)
#pragma GCC unroll 4
    for (int p = 0; p < kFloatTilePanels; p++)
      store(result + m * kFloatResultStride + p * kPanelRows, sums[m][p]);
}

struct MultiplyFloatTiles {
  const float* weights;
  int64_t num_columns;
  const float* x;
  int64_t x_stride;
  float* result;

  template <int kRows>
  void run(int64_t row) const {
    multiply_floats_tile<kRows>(weights, num_columns, x + row * x_stride, x_stride,
                                result + row * kFloatResultStride);
  }
};

template <int kKind>
struct MultiplyFloatsDirect {
  const uint8_t* panel;
  int64_t num_columns;
  const float* x;
  float* result;

  template <int kRows>
  void run(int64_t row) const {
    multiply_floats_direct<kKind, kRows>(panel, num_columns, x + row * num_columns,
                                         result + row * kFloatResultStride);
  }
};

template <int kKind>
void multiply_floats(const uint8_t* panels, int64_t count, const Activations& x, int64_t row,
                     int64_t num_rows, float* result, char* memory) {
  const float* rows = x.rows + row * x.width;
  int64_t size = panel_bytes(kKind, x.width);
  if (num_rows <= kDirectRows) {
    for (int64_t p = 0; p < count; p++)
      tile_rows<kDirectRows>(
          num_rows, 0,
          MultiplyFloatsDirect<kKind>{panels + p * size, x.width, rows, result + p * kPanelRows});
    return;
  }
  float* weights = reinterpret_cast<float*>(memory);
  for (int64_t m = 0; m < num_rows; m++)
    for (int p = 0; p < kFloatTilePanels; p++)
      store(result + m * kFloatResultStride + p * kPanelRows, zeros());
  for (int64_t begin = 0; begin < x.width; begin += kBlockColumns) {
    int64_t columns = least(kBlockColumns, x.width - begin);
    // A missing panel repeats the last one: its outputs are not used.
    for (int p = 0; p < kFloatTilePanels; p++) {
      const uint8_t* start = panels + least(p, count - 1) * size + panel_bytes(kKind, begin);
      for (int64_t k = 0; k < columns; k++)
        store(weights + (k * kFloatTilePanels + p) * kPanelRows,
              load_column<kKind>(start + panel_bytes(kKind, k)));
    }
    tile_rows<kFloatTileRows>(num_rows, 0,
                              MultiplyFloatTiles{weights, columns, rows + begin, x.width, result});
  }
}

constexpr size_t kFloatProductBytes = kBlockColumns * kFloatTilePanels * kPanelRows * sizeof(float);

}  // namespace
