// Tiles of 16 bytes by as many entries, turned in registers by the compiler's own vectors: one
// source for every instruction set, of which each has a zip.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <utility>

namespace {

template <size_t kBytes>
struct TileRow;
template <>
struct TileRow<1> {
  typedef uint8_t type __attribute__((vector_size(16)));
};
template <>
struct TileRow<2> {
  typedef uint16_t type __attribute__((vector_size(16)));
};
template <>
struct TileRow<4> {
  typedef uint32_t type __attribute__((vector_size(16)));
};

template <class T>
constexpr int kTileSize = 16 / static_cast<int>(sizeof(T));

// a[first], b[first], a[first + 1], b[first + 1], ...
template <size_t kFirst, class Row, size_t... kIndex>
inline Row zip(Row a, Row b, std::index_sequence<kIndex...>) {
  return Row{(kIndex % 2 ? b[kFirst + kIndex / 2] : a[kFirst + kIndex / 2])...};
}

// out[c * out_stride + r] = in[r * stride + c], r and c below kTileSize. After each round of zips
// of rows half a tile apart, one more bit of the row has become a bit of the column.
template <class T>
inline void transpose_tile(const T* in, int64_t stride, T* out, int64_t out_stride) {
  constexpr int kSize = kTileSize<T>;
  using Row = typename TileRow<sizeof(T)>::type;
  using Indices = std::make_index_sequence<kSize>;
  Row rows[kSize], zipped[kSize];
#pragma GCC unroll 16
  for (int r = 0; r < kSize; r++) __builtin_memcpy(&rows[r], in + r * stride, sizeof(Row));
#pragma GCC unroll 4
  for (int round = 1; round < kSize; round *= 2) {
#pragma GCC unroll 8
    for (int r = 0; r < kSize / 2; r++) {
      zipped[2 * r] = zip<0>(rows[r], rows[r + kSize / 2], Indices{});
      zipped[2 * r + 1] = zip<kSize / 2>(rows[r], rows[r + kSize / 2], Indices{});
    }
#pragma GCC unroll 16
    for (int r = 0; r < kSize; r++) rows[r] = zipped[r];
  }
#pragma GCC unroll 16
  for (int c = 0; c < kSize; c++) __builtin_memcpy(out + c * out_stride, &rows[c], sizeof(Row));
}

}  // namespace
