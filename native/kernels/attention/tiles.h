// Products of attention in tiles of compile-time size: queries by keys, weights by values.
#pragma once

#include "strips.h"

namespace {

constexpr int64_t kRowTile = kFloatTileRows;
constexpr int64_t kVectorTile = kFloatTilePanels;  // vectors of 16 keys or 16 columns

// Keys as columns, sixteen at each of columns[v]; entry c of all of them lies c * stride later.
// Where they are strewn over pages, next[v] is what the same register reads later, or null. Else
// they lie in a strip that begins at columns[0].
template <class T, bool kIsStrewn>
struct ScoreTile {
  const float* query;  // [rows, C]
  int64_t head_size;
  const T* columns[kVectorTile];
  const T* next[kVectorTile];
  int64_t stride;
  const float* factors;  // one for each key
  float* scores;

  template <int kRows, int kVectors>
  void run() const {
    F32 sums[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) sums[r][v] = zeros();
    for (int64_t c = 0; c < head_size; c++) {
      F32 keys[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) {
        if constexpr (kIsStrewn) {
          keys[v] = load_entries(columns[v] + c * stride);
          if (next[v]) prefetch(next[v] + c * stride);
        } else {
          keys[v] = load_entries(columns[0] + c * kStrip + v * kLanes);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; r++) {
        F32 one = broadcast(query[r * head_size + c]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) sums[r][v] = fma(one, keys[v], sums[r][v]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++)
        store(scores + r * kSegment + v * kLanes, mul(sums[r][v], load(factors + v * kLanes)));
  }
};

// Weighted values of some keys, which lie at values + places[key].row * stride where they are strewn, else
// stride apart.
template <class T, bool kIsStrewn>
struct ValueTile {
  const float* weights;  // [rows, kSegment]
  int64_t count;         // keys
  const T* values;
  const Place* places;
  int64_t stride;
  int64_t num_next;  // keys for which the one kStrip later comes near, where they are strewn
  float* out;
  int64_t out_stride;

  void skip(int64_t keys) {
    if constexpr (kIsStrewn) {
      places += keys;
      num_next -= keys;
    } else {
      values += keys * stride;
    }
  }

  template <int kRows, int kVectors>
  void run() const {
    F32 sums[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) sums[r][v] = load(out + r * out_stride + v * kLanes);
    for (int64_t key = 0; key < count; key++) {
      const T* value = values + (kIsStrewn ? places[key].row : key) * stride;
      F32 columns[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) columns[v] = load_entries(value + v * kLanes);
      if (kIsStrewn && key < num_next) {
        const T* next = values + places[key + kStrip].row * stride;
        for (int v = 0; v < kVectors; v += 64 / (kLanes * static_cast<int>(sizeof(T))))
          prefetch(next + v * kLanes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; r++) {
        F32 one = broadcast(weights[r * kSegment + key]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) sums[r][v] = fma(one, columns[v], sums[r][v]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; r++)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) store(out + r * out_stride + v * kLanes, sums[r][v]);
  }
};

// Calls body.run<rows, vectors> with compile-time sizes for a tile of at most the two limits.
template <int kVectors, class Body>
inline void with_vectors(int64_t vectors, const Body& body, int64_t rows);
template <int kRows, int kVectors, class Body>
inline void with_rows(int64_t rows, const Body& body) {
  if (rows == kRows) return body.template run<kRows, kVectors>();
  if constexpr (kRows > 1) with_rows<kRows - 1, kVectors>(rows, body);
}
template <int kVectors, class Body>
inline void with_vectors(int64_t vectors, const Body& body, int64_t rows) {
  if (vectors == kVectors) return with_rows<kRowTile, kVectors>(rows, body);
  if constexpr (kVectors > 1) with_vectors<kVectors - 1>(vectors, body, rows);
}

}  // namespace
