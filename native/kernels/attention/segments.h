// One segment of keys for some rows of queries, and segments put together.
#pragma once

#include "../exponential.h"
#include "tiles.h"

namespace {

constexpr int64_t kBlockRows = 192;  // rows (token, query head) of a unit of many tokens

// What does not change while an attention runs.
struct Heads {
  const float* query;
  int64_t query_stride;
  int64_t num_heads;
  float softmax_scale;
  float cap;       // of scores, or 0
  int64_t window;  // keys that a query may see, its own included
  int64_t num_first;   // keys of a sequence that it sees before them
  const float* sinks;  // [H] or null
  const cw_pages* pages;
  float* out;
  int64_t key_size;               // of a query head
  const cw_latent_pages* latent;  // rows that all heads share, or null: then pages has sizes alone

  int64_t shared() const { return num_heads / pages->num_groups; }
  int64_t padded() const { return ceil_div(pages->head_size, kLanes) * kLanes; }
  int64_t tokens_per_block() const { return most(1, kBlockRows / shared()); }
  int64_t most_rows() const { return most(kFewTokens, tokens_per_block()) * shared(); }
  // The first key of the window of a query at a position, and the keys that it sees before that.
  int64_t first_key(int64_t position) const { return most(0, position + 1 - window); }
  int64_t first_keys(int64_t position) const { return least(num_first, first_key(position)); }
};

// Scratch of one thread.
struct AttentionMemory {
  float* query;   // [rows, C]
  float* strip;   // [C, kStrip] keys, then [kStrip, padded C] values
  float* scores;  // [rows, kSegment]
  float* values;  // [rows, padded C] of one segment
  float* merged;  // [rows, padded C]
  float* peaks;   // [rows] of the segment
  float* sums;    // [rows]
  float* merged_peaks;
  float* merged_sums;
  int64_t* first;        // [rows] first key of the segment that each row may see
  int64_t* seen;         // [rows] the key after the last that it may see
  Place* places;         // [kSegment] of keys and values
  float* key_factors;    // [kSegment] what makes a product a score
  float* value_factors;  // [kSegment] scales, where values have them

  AttentionMemory(Arena& arena, const Heads& h) {
    int64_t rows = h.most_rows();
    query = arena.take<float>(rows * h.key_size);
    strip = arena.take<float>(kStrip * most(h.padded(), h.key_size));
    scores = arena.take<float>(rows * kSegment);
    values = arena.take<float>(rows * h.padded());
    merged = arena.take<float>(rows * h.padded());
    peaks = arena.take<float>(rows);
    sums = arena.take<float>(rows);
    merged_peaks = arena.take<float>(rows);
    merged_sums = arena.take<float>(rows);
    first = arena.take<int64_t>(rows);
    seen = arena.take<int64_t>(rows);
    places = arena.take<Place>(kSegment);
    key_factors = arena.take<float>(kSegment);
    value_factors = arena.take<float>(kSegment);
  }
};

// A segment's keys that lie in the windows of queries, or those of the first that lie before.
struct Piece {
  int64_t segment;
  bool is_before;
};

// Rows are (token, query head), tokens first: later rows see as many keys or more.
struct QueryUnit {
  Sequence sequence;
  int64_t group;
  int64_t token;  // of the sequence
  int64_t num_tokens;
  int64_t shared;

  int64_t num_rows() const { return num_tokens * shared; }
  int64_t position(int64_t row) const { return sequence.position(token + row / shared); }
  // Rows that see any key of the piece.
  Range rows_of(const Heads& h, const Piece& piece) const {
    int64_t first = piece.segment * kSegment, end = num_tokens;
    if (piece.is_before) return {most(0, first + h.window - position(0)) * shared, end * shared};
    int64_t begin = first - position(0);  // tokens before it see no such key
    if (h.window < sequence.context)      // nor do those whose window lies beyond
      end = least(end, first + kSegment + h.window - 1 - position(0));
    return {most(0, begin) * shared, end * shared};
  }
};

// Keys of a piece's segment that a query at a position may see.
inline Range seen_from(const Heads& h, int64_t position, const Piece& piece) {
  int64_t first = piece.segment * kSegment;
  if (piece.is_before) return {0, most(0, least(kSegment, h.first_keys(position) - first))};
  return {most(0, h.first_key(position) - first), most(0, least(kSegment, position + 1 - first))};
}

// What a sequence's tokens see, in the order in which it is put together: pieces before windows,
// then the segments of windows. The last token sees most before its window.
struct Pieces {
  int64_t num_before;
  Range segments;

  Pieces(const Heads& h, int64_t first_position, int64_t last_position)
      : num_before(ceil_div(h.first_keys(last_position), kSegment)),
        segments{h.first_key(first_position) / kSegment, last_position / kSegment + 1} {}

  int64_t count() const { return num_before + segments.end - segments.begin; }
  Piece operator[](int64_t index) const {
    if (index < num_before) return {index, true};
    return {segments.begin + index - num_before, false};
  }
};

// Lanes before count become filler.
inline F32 drop_first(F32 x, int64_t count, F32 filler) {
  return keep_first(filler, static_cast<int>(count), x);
}

// Calls body(i, lanes before, lanes to keep) for each register that holds keys of the range.
template <class Body>
inline void each_register(Range keys, const Body& body) {
  int64_t i = keys.begin / kLanes * kLanes;
  if (i < keys.begin) {
    body(i, keys.begin - i, least(kLanes, keys.end - i));
    i += kLanes;
  }
  for (; i + kLanes <= keys.end; i += kLanes) body(i, INT64_C(0), INT64_C(16));
  if (i < keys.end) body(i, INT64_C(0), keys.end - i);
}

// Only lanes of the range count.
inline F32 keep_lanes(F32 x, int64_t before, int64_t kept, F32 filler) {
  if (before > 0) x = drop_first(x, before, filler);
  return kept < kLanes ? keep_first(x, static_cast<int>(kept), filler) : x;
}

inline float peak_of_row(const float* scores, Range keys) {
  F32 lowest = broadcast(-__builtin_inff()), lanes = lowest;
  each_register(keys, [&](int64_t i, int64_t before, int64_t kept) {
    lanes = max_of(lanes, keep_lanes(load(scores + i), before, kept, lowest));
  });
  return max_lanes(lanes);
}

// Scores to weights e^(score - peak), and their sum. Lanes outside the range are not read again.
inline float weigh_row(float* scores, Range keys, float peak) {
  F32 sums = zeros(), reference = broadcast(peak);
  each_register(keys, [&](int64_t i, int64_t before, int64_t kept) {
    F32 weights = fused_exponential(sub(load(scores + i), reference));
    store(scores + i, weights);
    sums = add(sums, keep_lanes(weights, before, kept, zeros()));
  });
  return sum_lanes(sums);
}

// cap * tanh(score / cap).
inline void cap_row(float* scores, Range keys, float cap) {
  F32 twice = broadcast(2.0f / cap), limit = broadcast(cap);
  for (int64_t i = keys.begin / kLanes * kLanes; i < keys.end; i += kLanes)
    store(scores + i, mul(limit, tangent_of_twice(mul(load(scores + i), twice))));
}

inline void scale_row(float* weights, Range keys, const float* factors) {
  for (int64_t i = keys.begin / kLanes * kLanes; i < keys.end; i += kLanes)
    store(weights + i, mul(load(weights + i), load(factors + i)));
}

// What turns products into scores and weights into weights of stored numbers.
inline void find_factors(const Heads& h, Range keys, const AttentionMemory& m) {
  const float* key_scales = h.pages->key_scales;
  const float* value_scales = h.pages->value_scales;
  F32 scale = broadcast(h.softmax_scale);
  for (int64_t i = keys.begin; i < keys.end; i += kLanes) {
    store(m.key_factors + i, scale);
    if (!key_scales) continue;
    int64_t row = m.places[i].row;
    if (has_even_pages(*h.pages)) {
      store(m.key_factors + i, mul(scale, load(key_scales + row)));
      store(m.value_factors + i, load(value_scales + row));
      continue;
    }
    for (int64_t j = i; j < least(keys.end, i + kLanes); j++) {
      m.key_factors[j] = h.softmax_scale * key_scales[m.places[j].row];
      m.value_factors[j] = value_scales[m.places[j].row];
    }
  }
}

// Scores of all rows for keys laid out in the strip.
inline void score_strip(const Heads& h, Range keys, Range rows, const AttentionMemory& m) {
  int64_t size = h.key_size;
  ScoreTile<float, false> tile{};
  tile.head_size = size;
  for (int64_t r = rows.begin; r < rows.end; r += kRowTile) {
    int64_t tile_rows = least(kRowTile, rows.end - r);
    int64_t end = least(keys.end, m.seen[r + tile_rows - 1]);
    int64_t begin = most(keys.begin, m.first[r] / kLanes * kLanes);
    for (int64_t key = begin; key < end; key += kVectorTile * kLanes) {
      tile.query = m.query + r * size;
      tile.columns[0] = m.strip + key - keys.begin;
      tile.factors = m.key_factors + key;
      tile.scores = m.scores + r * kSegment + key;
      with_vectors<kVectorTile>(least(kVectorTile, ceil_div(end - key, kLanes)), tile, tile_rows);
    }
  }
}

// Rows of tiles of nearly one size: sums of few rows would wait for one another.
inline int64_t rows_per_tile(Range rows) {
  int64_t count = rows.end - rows.begin;
  return ceil_div(count, ceil_div(count, kRowTile));
}

// The same of keys where they lie, for rows of few tiles.
template <class T>
void score_pages(const Heads& h, Range keys, Range rows, const AttentionMemory& m) {
  const cw_pages& pages = *h.pages;
  const T* first = static_cast<const T*>(pages.keys);
  constexpr int64_t kKeys = kVectorTile * kLanes;
  for (int64_t key = keys.begin; key < keys.end; key += kKeys) {
    ScoreTile<T, true> tile{};
    int64_t vectors = least(kVectorTile, ceil_div(keys.end - key, kLanes));
    for (int64_t v = 0; v < vectors; v++) {
      int64_t at = key + v * kLanes, next = at + kKeys;
      tile.columns[v] = first + m.places[at].key;
      tile.next[v] = next < keys.end ? first + m.places[next].key : nullptr;
    }
    tile.head_size = pages.head_size;
    tile.stride = pages.page_size;
    tile.factors = m.key_factors + key;
    int64_t most_rows = rows_per_tile(rows);
    for (int64_t r = rows.begin; r < rows.end; r += most_rows) {
      tile.query = m.query + r * pages.head_size;
      tile.scores = m.scores + r * kSegment + key;
      with_vectors<kVectorTile>(vectors, tile, least(most_rows, rows.end - r));
      for (const T*& next : tile.next) next = nullptr;  // they are on their way
    }
  }
}

// Weighted values of all rows for some keys: those that a whole tile sees together, before and
// after them what single rows see. tile's values and rows are those of the first key.
template <class Tile>
void add_values(Tile tile, Range keys, Range rows, int64_t padded, const AttentionMemory& m) {
  auto add = [&](int64_t begin, int64_t end, int64_t row, int64_t num_rows) {
    if (begin >= end) return;
    Tile part = tile;
    part.skip(begin - keys.begin);
    part.count = end - begin;
    for (int64_t c = 0; c < padded; c += kVectorTile * kLanes) {
      part.weights = m.scores + row * kSegment + begin;
      part.out = m.values + row * padded + c;
      with_vectors<kVectorTile>(least(kVectorTile, (padded - c) / kLanes), part, num_rows);
      part.values += kVectorTile * kLanes;
    }
  };
  int64_t most_rows = rows_per_tile(rows);
  for (int64_t r = rows.begin; r < rows.end; r += most_rows) {
    int64_t tile_rows = least(most_rows, rows.end - r), last = r + tile_rows - 1;
    int64_t begin = most(keys.begin, m.first[last]), end = least(keys.end, m.seen[r]);
    if (begin >= end) begin = end = keys.end;  // none that all see: row by row
    if (m.first[r] < begin && keys.begin < begin)
      for (int64_t i = r; i <= last; i++)
        add(most(keys.begin, m.first[i]), least(begin, m.seen[i]), i, 1);
    add(begin, end, r, tile_rows);
    if (m.seen[last] > end && keys.end > end)
      for (int64_t i = r; i <= last; i++) add(end, least(keys.end, m.seen[i]), i, 1);
  }
}

// Whether a unit of so many rows reads keys and values where they lie: laying them out costs about
// as much as multiplying them with a tile.
inline bool reads_pages(const cw_pages& pages, int64_t num_rows) {
  return num_rows <= kReadTiles * kRowTile && has_even_pages(pages) &&
         pages.head_size % kLanes == 0;
}

template <class T>
inline void lay_keys(const Heads& h, const Place* places, Range keys, int64_t end, float* strip) {
  if constexpr (is_latent<T>)
    lay_latent_keys<typename T::Entry>(*h.latent, places, keys, strip);
  else
    lay_keys<T>(*h.pages, places, keys, end, strip);
}

template <class T>
inline void lay_values(const Heads& h, const Place* places, Range keys, int64_t end,
                       int64_t padded, float* strip) {
  if constexpr (is_latent<T>)
    lay_latent_values<typename T::Entry>(*h.latent, places, keys, padded, strip);
  else
    lay_values<T>(*h.pages, places, keys, end, padded, strip);
}

// Peak, sum and values of one piece for some rows.
template <class T>
void reduce_segment(const Heads& h, const QueryUnit& unit, const Piece& piece,
                    const AttentionMemory& m, Range rows) {
  const cw_pages& pages = *h.pages;
  int64_t size = pages.head_size, padded = h.padded();
  for (int64_t r = rows.begin, p = unit.position(r); r < rows.end; p++) {
    Range seen = seen_from(h, p, piece);
    for (int64_t i = 0; i < unit.shared; i++, r++) m.first[r] = seen.begin, m.seen[r] = seen.end;
  }
  Range keys{m.first[rows.begin] / kLanes * kLanes, m.seen[rows.end - 1]};
  find_places(pages, unit.sequence, h.latent ? 0 : unit.group, h.latent ? 1 : pages.num_groups,
              piece.segment, keys, m.places);
  find_factors(h, keys, m);
  constexpr bool kMayRead = kReadTiles > 0 && !is_latent<T>;
  bool is_direct = kMayRead && reads_pages(pages, rows.end - rows.begin);
  if constexpr (kMayRead) {
    const T* values = static_cast<const T*>(pages.values);
    if (is_direct) score_pages<T>(h, keys, rows, m);
    if (is_direct) for (int64_t i = keys.begin; i < least(keys.end, keys.begin + kStrip); i++)
      prefetch_span(values + m.places[i].row * size, size);
  }
  if (!is_direct) {
    for (int64_t key = keys.begin; key < keys.end; key += kStrip) {
      Range strip{key, least(keys.end, key + kStrip)};
      lay_keys<T>(h, m.places, strip, keys.end, m.strip);
      score_strip(h, strip, rows, m);
    }
  }
  for (int64_t r = rows.begin; r < rows.end; r++) {
    float* scores = m.scores + r * kSegment;
    Range its{m.first[r], m.seen[r]};
    if (h.cap > 0.0f) cap_row(scores, its, h.cap);
    m.peaks[r] = peak_of_row(scores, its);
    m.sums[r] = weigh_row(scores, its, m.peaks[r]);
    if (pages.value_scales) scale_row(scores, its, m.value_factors);
  }
  for (int64_t i = rows.begin * padded; i < rows.end * padded; i += kLanes)
    store(m.values + i, zeros());
  if constexpr (kMayRead) {
    const T* values = static_cast<const T*>(pages.values);
    if (is_direct) {
      int64_t num_next = keys.end - keys.begin - kStrip;
      ValueTile<T, true> tile{nullptr, 0,        values,  m.places + keys.begin,
                              size,    num_next, nullptr, padded};
      return add_values(tile, keys, rows, padded, m);
    }
  }
  ValueTile<float, false> tile{nullptr, 0, m.strip, nullptr, padded, 0, nullptr, padded};
  for (int64_t key = keys.begin; key < keys.end; key += kStrip) {
    Range strip{key, least(keys.end, key + kStrip)};
    lay_values<T>(h, m.places, strip, keys.end, padded, m.strip);
    add_values(tile, strip, rows, padded, m);
  }
}

// One row: left becomes left and right under their common peak.
inline void merge_row(float* left_peak, float* left_sum, float* left, float right_peak,
                      float right_sum, const float* right, int64_t padded) {
  float peak = *left_peak > right_peak ? *left_peak : right_peak;
  float scales[kLanes] = {*left_peak - peak, right_peak - peak};
  store(scales, fused_exponential(load(scales)));
  F32 scale_left = broadcast(scales[0]), scale_right = broadcast(scales[1]);
  float sums[kLanes] = {*left_sum};
  float others[kLanes] = {right_sum};
  store(sums, fma(load(others), scale_right, mul(load(sums), scale_left)));
  *left_peak = peak;
  *left_sum = sums[0];
  for (int64_t c = 0; c < padded; c += kLanes)
    store(left + c, fma(load(right + c), scale_right, mul(load(left + c), scale_left)));
}

// A sink is one more score, whose value is zero.
inline float sink_factor(float peak, float sum, float sink) {
  float most_score = peak > sink ? peak : sink;
  float powers[kLanes] = {peak - most_score, sink - most_score};
  store(powers, fused_exponential(load(powers)));
  return powers[0] / (sum * powers[0] + powers[1]);
}

inline void finish_head(const float* values, float factor, int64_t head_size, float* out) {
  F32 inverse = broadcast(factor);
  int64_t c = 0;
  for (; c + kLanes <= head_size; c += kLanes) store(out + c, mul(load(values + c), inverse));
  int rest = static_cast<int>(head_size - c);
  if (rest) store_first(out + c, mul(load(values + c), inverse), rest);
}

inline float* out_of(const Heads& h, const QueryUnit& unit, int64_t row) {
  int64_t token = unit.sequence.first_token + unit.token + row / unit.shared;
  int64_t head = unit.group * unit.shared + row % unit.shared;
  return h.out + (token * h.num_heads + head) * h.pages->head_size;
}

// A row of weighted values and what they are divided by, to the output.
inline void finish_row(const Heads& h, const QueryUnit& unit, int64_t row, const float* values,
                       float peak, float sum) {
  int64_t head = unit.group * unit.shared + row % unit.shared;
  float factor = h.sinks ? sink_factor(peak, sum, h.sinks[head]) : 1.0f / sum;
  finish_head(values, factor, h.pages->head_size, out_of(h, unit, row));
}

inline void gather_queries(const Heads& h, const QueryUnit& unit, float* query) {
  int64_t size = h.key_size;
  for (int64_t t = 0; t < unit.num_tokens; t++)
    __builtin_memcpy(query + t * unit.shared * size,
                     h.query + (unit.sequence.first_token + unit.token + t) * h.query_stride +
                         unit.group * unit.shared * size,
                     static_cast<size_t>(unit.shared * size) * sizeof(float));
}

}  // namespace
