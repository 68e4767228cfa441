// Products of training: rows times a matrix, and what a gradient becomes for that matrix.
#pragma once

#include "../../simd/transpose.h"
#include "../product.h"
#include "lanes.h"

namespace {

// Numbers that are added up before they join a sum, so that what is read again for them stays near.
constexpr int64_t kDepthOfBlock = 256;
constexpr int64_t kTileColumns = kFloatTilePanels * kPanelRows;

// Some rows of a tile's result: columns times a factor each, over a depth. Columns are step numbers
// apart, factors of a row lie together or, kIsTurned, those of a depth.
struct Tile {
  const float* columns;
  int64_t step;
  int64_t depth;
  const float* factors;
  int64_t factor_step;
  const float* bias;  // what out begins with, or null
  float* out;
  int64_t out_step;
  int64_t width;  // columns that there are, of kTileColumns
  bool adds;      // to what is in out
};

inline int lanes_of(int64_t width, int panel) {
  int64_t left = width - panel * kLanes;
  return static_cast<int>(left < 0 ? 0 : least(left, kLanes));
}

template <bool kIsWhole>
inline F32 get_panel(const float* p, int64_t width, int panel) {
  if constexpr (kIsWhole) return load(p + panel * kLanes);
  int count = lanes_of(width, panel);
  return count ? load_first(p + panel * kLanes, count) : zeros();
}

template <bool kIsWhole>
inline void put_panel(float* p, int64_t width, int panel, F32 x) {
  if constexpr (kIsWhole) return store(p + panel * kLanes, x);
  int count = lanes_of(width, panel);
  if (count) store_first(p + panel * kLanes, x, count);
}

// kIsPadded: columns past the width are there, and zero.
template <int kRows, bool kIsTurned, bool kIsWhole, bool kIsPadded>
CW_WHOLE void learn_tile(const Tile& t, int64_t row) {
  const float* columns = t.columns;
  const float* factors = t.factors + (kIsTurned ? row : row * t.factor_step);
  F32 sums[kRows][kFloatTilePanels];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++)
#pragma GCC unroll 4
    for (int p = 0; p < kFloatTilePanels; p++) sums[m][p] = zeros();
  for (int64_t k = 0; k < t.depth; k++, columns += t.step) {
    F32 column[kFloatTilePanels];
#pragma GCC unroll 4
    for (int p = 0; p < kFloatTilePanels; p++)
      column[p] = get_panel<kIsWhole || kIsPadded>(columns, t.width, p);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++) {
      F32 one = broadcast(kIsTurned ? factors[m] : factors[m * t.factor_step]);
#pragma GCC unroll 4
      for (int p = 0; p < kFloatTilePanels; p++) sums[m][p] = fma(column[p], one, sums[m][p]);
    }
    factors += kIsTurned ? t.factor_step : 1;
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; m++)
#pragma GCC unroll 4
    for (int p = 0; p < kFloatTilePanels; p++) {
      float* out = t.out + (row + m) * t.out_step;
      F32 sum = sums[m][p];
      if (t.adds) sum = add(get_panel<kIsWhole>(out, t.width, p), sum);
      if (t.bias) sum = add(get_panel<kIsWhole>(t.bias, t.width, p), sum);
      put_panel<kIsWhole>(out, t.width, p, sum);
    }
}

template <bool kIsTurned, bool kIsWhole, bool kIsPadded>
struct LearnTiles {
  Tile tile;
  template <int kRows>
  void run(int64_t row) const {
    learn_tile<kRows, kIsTurned, kIsWhole, kIsPadded>(tile, row);
  }
};

template <bool kIsTurned, bool kIsPadded>
inline void learn_tiles(const Tile& tile, int64_t num_rows) {
  if (tile.width >= kTileColumns)
    tile_rows<kFloatTileRows>(num_rows, 0, LearnTiles<kIsTurned, true, kIsPadded>{tile});
  else
    tile_rows<kFloatTileRows>(num_rows, 0, LearnTiles<kIsTurned, false, kIsPadded>{tile});
}

// A tile's columns of a matrix [depth, width], or of one [width, depth], each depth's side by side.
void learn_pack(const cutaway::RowProducts& a, Range tiles) {
  for (int64_t tile = tiles.begin; tile < tiles.end; tile++) {
    int64_t first = tile * kTileColumns, width = least(kTileColumns, a.width - first);
    float* packed = a.packed + first * a.depth;
    if (!a.is_turned) {
      for (int64_t k = 0; k < a.depth; k++)
        for (int p = 0; p < kFloatTilePanels; p++)
          store(packed + k * kTileColumns + p * kLanes,
                get_panel<false>(a.matrix + k * a.width + first, width, p));
      continue;
    }
    if (width < kTileColumns)
      __builtin_memset(packed, 0, static_cast<size_t>(kTileColumns * a.depth) * sizeof(float));
    for (int64_t n = 0; n < width; n += 4)
      for (int64_t k = 0; k < a.depth; k += 4) {
        const float* from = a.matrix + (first + n) * a.depth + k;
        float* to = packed + k * kTileColumns + n;
        if (n + 4 <= width && k + 4 <= a.depth) {
          transpose_tile(from, a.depth, to, kTileColumns);
          continue;
        }
        for (int64_t r = 0; r < least(4, width - n); r++)
          for (int64_t c = 0; c < least(4, a.depth - k); c++)
            to[c * kTileColumns + r] = from[r * a.depth + c];
      }
  }
}

void learn_rows(const cutaway::RowProducts& a, Range rows) {
  int64_t count = rows.end - rows.begin;
  for (int64_t k = 0; k < a.depth; k += kDepthOfBlock) {
    int64_t depth = least(kDepthOfBlock, a.depth - k);
    for (int64_t n = 0; n < a.width; n += kTileColumns) {
      Tile tile{a.packed + n * a.depth + k * kTileColumns,
                kTileColumns,
                depth,
                a.x + rows.begin * a.depth + k,
                a.depth,
                a.bias && k == 0 ? a.bias + n : nullptr,
                a.out + rows.begin * a.width + n,
                a.width,
                a.width - n,
                k > 0};
      learn_tiles<false, true>(tile, count);
    }
  }
}

// Rows of some columns of a matrix, side by side in memory: those of a matrix whose width is a power
// of two would push each other out of the nearest memory.
inline void copy_columns(const float* from, int64_t from_step, int64_t rows, int64_t width,
                         float* to, int64_t to_step) {
  for (int64_t row = 0; row < rows; row++, from += from_step, to += to_step)
    each_lanes(width, [&](int64_t i, auto lanes) { lanes.put(to + i, lanes.get(from + i)); });
}

void learn_columns(const cutaway::ColumnProducts& a, Range heights, float* memory) {
  int64_t count = heights.end - heights.begin;
  float* left = memory + cutaway::kTokensOfBlock * kTileColumns;
  for (int64_t t = 0; t < a.rows; t += cutaway::kTokensOfBlock) {
    int64_t depth = least(cutaway::kTokensOfBlock, a.rows - t);
    copy_columns(a.left + t * a.height + heights.begin, a.height, depth, count, left, count);
    for (int64_t n = 0; n < a.width; n += kTileColumns) {
      int64_t width = least(kTileColumns, a.width - n);
      copy_columns(a.right + t * a.width + n, a.width, depth, width, memory, kTileColumns);
      float* out = a.out + heights.begin * a.width + n;
      Tile tile{memory, kTileColumns, depth, left, count, nullptr, out, a.width, width, t > 0};
      learn_tiles<true, false>(tile, count);
    }
    if (!a.sums) continue;
    each_lanes(count, [&](int64_t i, auto lanes) {
      F32 sum = zeros();
      for (int64_t k = 0; k < depth; k++) sum = add(sum, lanes.get(left + k * count + i));
      float* sums = a.sums + heights.begin + i;
      lanes.put(sums, t ? add(lanes.get(sums), sum) : sum);
    });
  }
}

}  // namespace
