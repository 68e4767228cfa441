// Causal attention of whole sequences to themselves, with its gradients, for training.
//
// A unit of work is one key-value head of one sequence with its query heads. Scores of a block of
// queries live in scratch memory; kept for the gradient is one number for each row of scores.
#pragma once

#include "../../simd/transpose.h"
#include "../exponential.h"
#include "../product.h"
#include "lanes.h"

namespace {

// out[row][lane] (+)= sum of a[row][k] * b[k][lane] over k, in that order.
template <int kRows>
inline void learn_tile(const float* a, int64_t a_row, int64_t a_step, const float* b,
                       int64_t b_stride, int64_t count, float* out, int64_t out_stride, bool adds) {
  F32 sums[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; r++) sums[r] = adds ? load(out + r * out_stride) : zeros();
  for (int64_t k = 0; k < count; k++, a += a_step, b += b_stride) {
    F32 lanes = load(b);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; r++) sums[r] = fma(broadcast(a[r * a_row]), lanes, sums[r]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; r++) store(out + r * out_stride, sums[r]);
}

struct Scratches {
  float* keys;    // [C, padded], turned
  float* values;  // likewise
  float* shares;  // [kQueriesOfBlock, padded]
  float* pulls;   // likewise
  int64_t padded;
};

// Products of query rows with turned keys or values, up to each row's own place.
struct OverKeys {
  const float* x;
  int64_t x_stride;
  const float* turned;
  int64_t size;  // C
  int64_t first;
  Scratches s;
  float* out;

  template <int kRows>
  void run(int64_t row) const {
    for (int64_t j = 0; j < first + row + kRows; j += kLanes)
      learn_tile<kRows>(x + row * x_stride, x_stride, 1, turned + j, s.padded, size,
                        out + row * s.padded + j, s.padded, false);
  }
};

// Products of shares with rows of keys or values.
struct OverShares {
  const float* shares;
  const float* rows;
  int64_t stride;
  int64_t size;
  int64_t first;
  int64_t padded;
  float* out;
  int64_t out_stride;

  template <int kRows>
  void run(int64_t row) const {
    for (int64_t c = 0; c < size; c += kLanes)
      learn_tile<kRows>(shares + row * padded, padded, 1, rows + c, stride, first + row + kRows,
                        out + row * out_stride + c, out_stride, false);
  }
};

// The same over the queries that see a key: added to what other blocks and heads gave it.
struct OverQueries {
  const float* shares;
  const float* rows;
  int64_t stride;
  int64_t size;
  int64_t first;
  int64_t num_queries;
  int64_t padded;
  float* out;
  int64_t out_stride;

  template <int kRows>
  void run(int64_t key) const {
    int64_t from = most(0, key - first);
    for (int64_t c = 0; c < size; c += kLanes)
      learn_tile<kRows>(shares + from * padded + key, 1, padded, rows + from * stride + c, stride,
                        num_queries - from, out + key * out_stride + c, out_stride, true);
  }
};

inline void turn_rows(const float* rows, int64_t stride, int64_t count, int64_t size,
                      int64_t padded, float* out) {
  int64_t whole = count / 4 * 4;  // C is a multiple of 16
  for (int64_t i = 0; i < whole; i += 4)
    for (int64_t c = 0; c < size; c += 4)
      transpose_tile(rows + i * stride + c, stride, out + c * padded + i, padded);
  for (int64_t c = 0; c < size; c++) {
    float* lane = out + c * padded;
    for (int64_t i = whole; i < count; i++) lane[i] = rows[i * stride + c];
    for (int64_t i = count; i < padded; i++) lane[i] = 0.0f;
  }
}

// Scores become shares that add up to 1; what is behind a row's place becomes 0. Returns the log of
// the sum of exponentials.
inline float share_row(float* row, int64_t seen, int64_t end, float scale) {
  F32 largest = broadcast(row[0]);
  for (int64_t j = 0; j < seen; j += kLanes) {
    int count = static_cast<int>(least(kLanes, seen - j));
    largest = max_of(largest, keep_first(load(row + j), count, largest));
  }
  float peak = max_lanes(largest) * scale;
  F32 sums = zeros();
  for (int64_t j = 0; j < end; j += kLanes) {
    int count = static_cast<int>(most(0, least(kLanes, seen - j)));
    F32 raised = fused_exponential(fma(load(row + j), broadcast(scale), broadcast(-peak)));
    raised = keep_first(raised, count, zeros());
    sums = add(sums, raised);
    store(row + j, raised);
  }
  float sum = sum_lanes(sums);
  F32 inverse = broadcast(1.0f / sum);
  for (int64_t j = 0; j < end; j += kLanes) store(row + j, mul(load(row + j), inverse));
  return peak + __builtin_logf(sum);
}

// Scores become shares by the log that was kept, and pulls of shares become pulls of scores.
inline void pull_row(float* shares, float* pulls, int64_t seen, int64_t end, float scale,
                     float log_sum, float mean) {
  for (int64_t j = 0; j < end; j += kLanes) {
    int count = static_cast<int>(most(0, least(kLanes, seen - j)));
    F32 share = fused_exponential(fma(load(shares + j), broadcast(scale), broadcast(-log_sum)));
    share = keep_first(share, count, zeros());
    F32 pull = mul(mul(share, sub(load(pulls + j), broadcast(mean))), broadcast(scale));
    store(shares + j, share);
    store(pulls + j, keep_first(pull, count, zeros()));
  }
}

inline float dot_rows(const float* a, const float* b, int64_t size) {
  F32 sums = zeros();
  for (int64_t c = 0; c < size; c += kLanes) sums = fma(load(a + c), load(b + c), sums);
  return sum_lanes(sums);
}

// One query head's block of rows, first to first + count within its sequence.
CW_WHOLE void learn_block(const cutaway::OwnAttention& a, int64_t start, int64_t head, int64_t group,
                        int64_t first, int64_t count, const Scratches& s) {
  int64_t size = a.head_size, wide = a.num_heads * size, at = start + first;
  float scale = static_cast<float>(a.scale);
  const float* query = a.query + at * a.query_stride + head * size;
  float* sums = a.sums + at * a.num_heads + head;
  float* out = a.out + at * wide + head * size;
  int64_t end = ceil_div(first + count, kLanes) * kLanes;
  tile_rows<kFloatTileRows>(
      count, 0, OverKeys{query, a.query_stride, s.keys, size, first, s, s.shares});
  if (!a.grad) {
    for (int64_t i = 0; i < count; i++)
      sums[i * a.num_heads] = share_row(s.shares + i * s.padded, first + i + 1, end, scale);
    const float* value = a.value + start * a.value_stride + group * size;
    tile_rows<kFloatTileRows>(
        count, 0, OverShares{s.shares, value, a.value_stride, size, first, s.padded, out, wide});
    return;
  }
  const float* grad = a.grad + at * wide + head * size;
  tile_rows<kFloatTileRows>(count, 0, OverKeys{grad, wide, s.values, size, first, s, s.pulls});
  for (int64_t i = 0; i < count; i++)
    pull_row(s.shares + i * s.padded, s.pulls + i * s.padded, first + i + 1, end, scale,
             sums[i * a.num_heads], dot_rows(grad + i * wide, out + i * wide, size));
  const float* key = a.key + start * a.key_stride + group * size;
  tile_rows<kFloatTileRows>(count, 0,
                            OverShares{s.pulls, key, a.key_stride, size, first, s.padded,
                                       a.of_query + at * wide + head * size, wide});
  int64_t narrow = a.num_groups * size, own = start * narrow + group * size;
  tile_rows<kFloatTileRows>(first + count, 0,
                            OverQueries{s.pulls, query, a.query_stride, size, first, count,
                                        s.padded, a.of_key + own, narrow});
  tile_rows<kFloatTileRows>(first + count, 0,
                            OverQueries{s.shares, grad, wide, size, first, count, s.padded,
                                        a.of_value + own, narrow});
}

void learn_attention(const cutaway::OwnAttention& a, Range units, float* memory) {
  for (int64_t unit = units.begin; unit < units.end; unit++) {
    int64_t sequence = unit / a.num_groups, group = unit % a.num_groups;
    int64_t start = a.starts[sequence], length = a.starts[sequence + 1] - start;
    int64_t size = a.head_size, shared = a.num_heads / a.num_groups;
    int64_t padded = ceil_div(length, kLanes) * kLanes;
    Scratches s{memory, memory + size * padded, memory + 2 * size * padded, nullptr, padded};
    s.pulls = s.shares + cutaway::kQueriesOfBlock * padded;
    turn_rows(a.key + start * a.key_stride + group * size, a.key_stride, length, size, padded,
              s.keys);
    if (a.grad) {
      turn_rows(a.value + start * a.value_stride + group * size, a.value_stride, length, size,
                padded, s.values);
      for (int64_t i = start; i < start + length; i++) {
        int64_t at = (i * a.num_groups + group) * size;
        __builtin_memset(a.of_key + at, 0, static_cast<size_t>(size) * sizeof(float));
        __builtin_memset(a.of_value + at, 0, static_cast<size_t>(size) * sizeof(float));
      }
    }
    for (int64_t head = group * shared; head < (group + 1) * shared; head++)
      for (int64_t first = 0; first < length; first += cutaway::kQueriesOfBlock)
        learn_block(a, start, head, group, first, least(cutaway::kQueriesOfBlock, length - first),
                    s);
  }
}

}  // namespace
