// Keys and values where they lie in the pages, and laid out as strips of floats.
#pragma once

#include "../pages.h"

namespace {

constexpr int64_t kSegment = 256;  // keys; as SEGMENT of kernels/attention/plain.py
constexpr int64_t kStrip = 64;     // keys that are laid out for the tiles at once
constexpr int64_t kFewTokens = 8;  // of one sequence, up to which its segments are divided

struct Sequence {
  int64_t first_token;
  int64_t num_tokens;
  int64_t context;
  const int64_t* pages;

  int64_t position(int64_t token) const { return context - num_tokens + token; }
  bool has_few() const { return num_tokens <= kFewTokens; }
};

inline Sequence sequence_of(const cw_step& step, const cw_group& group, int64_t index) {
  int64_t first = step.query_starts[index];
  return {first, step.query_starts[index + 1] - first, step.context_lengths[index],
          group.page_table + index * group.pages_per_sequence};
}

inline F32 load_entries(const float* p) { return load(p); }
inline F32 load_entries(const Half* p) { return load_f16(&p->bits); }
inline F32 load_entries(const Brain* p) { return load_bf16(&p->bits); }
inline F32 load_entries(const int8_t* p) { return load_int8(p); }
inline F32 load_entries(const Eighth* p) { return load_e4m3(&p->bits); }

// Fewer than a register; the lanes beyond are zeros.
template <class T>
inline F32 load_some(const T* p, int64_t count) {
  T kept[kLanes] = {};
  for (int64_t i = 0; i < count; i++) kept[i] = p[i];
  return load_entries(kept);
}

// Where the keys of a segment lie, from the first on that is seen; others are not set.
inline void find_places(const cw_pages& pages, const Sequence& sequence, int64_t group,
                        int64_t num_groups, int64_t segment, Range keys, Place* places) {
  int64_t position = segment * kSegment + keys.begin;
  int64_t page = position / pages.page_size, offset = position % pages.page_size;
  for (int64_t i = keys.begin; i < keys.end; page++, offset = 0) {
    Place place = place_in(pages, sequence.pages[page], group, num_groups, offset);
    int64_t end = least(keys.end, i + pages.page_size - offset);
    for (; i < end; i++, place.row++, place.key++) places[i] = place;
  }
}

// Whether sixteen keys from a multiple of sixteen on always lie in one page.
inline bool has_even_pages(const cw_pages& pages) { return pages.page_size % kLanes == 0; }

// What is read next comes near: rows are strewn, so the CPU would not guess.
template <class T>
inline void prefetch_span(const T* first, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(T))) prefetch(first + i);
}

// Up to sixteen keys as columns: strip[c][key].
template <class T>
inline void lay_sixteen_keys(const cw_pages& pages, const Place* places, int64_t count,
                             float* strip) {
  const T* keys = static_cast<const T*>(pages.keys);
  int64_t stride = pages.page_size;
  if (has_even_pages(pages)) {
    const T* key = keys + places[0].key;
    for (int64_t c = 0; c < pages.head_size; c++)
      store(strip + c * kStrip, load_entries(key + c * stride));
    return;
  }
  for (int64_t i = 0; i < count;) {
    int64_t here = least(count - i, stride - places[i].row % stride);  // of one page
    const T* key = keys + places[i].key;
    for (int64_t c = 0; c < pages.head_size; c++)
      store_first(strip + c * kStrip + i, load_some(key + c * stride, here),
                  static_cast<int>(here));
    i += here;
  }
}

// The keys of a strip; meanwhile those of the next come near.
template <class T>
void lay_keys(const cw_pages& pages, const Place* places, Range keys, int64_t end, float* strip) {
  for (int64_t i = keys.begin; i < keys.end; i += kLanes) {
    if (pages.page_size == kLanes && i + kStrip < end)
      prefetch_span(static_cast<const T*>(pages.keys) + places[i + kStrip].key,
                    kLanes * pages.head_size);
    lay_sixteen_keys<T>(pages, places + i, least(kLanes, keys.end - i), strip + i - keys.begin);
  }
}

template <class T>
void lay_values(const cw_pages& pages, const Place* places, Range keys, int64_t end,
                int64_t padded, float* strip) {
  const T* values = static_cast<const T*>(pages.values);
  int64_t size = pages.head_size;
  for (int64_t i = keys.begin; i < keys.end; i++, strip += padded) {
    if (i + kStrip < end) prefetch_span(values + places[i + kStrip].row * size, size);
    const T* value = values + places[i].row * size;
    int64_t c = 0;
    for (; c + kLanes <= size; c += kLanes) store(strip + c, load_entries(value + c));
    if (c < size) store(strip + c, load_some(value + c, size - c));
  }
}

// Rows that all heads share, in entries of some type.
template <class T>
struct Latent {
  using Entry = T;
};
template <class T>
constexpr bool is_latent = false;
template <class T>
constexpr bool is_latent<Latent<T>> = true;

// A row of entries as numbers, times its scale.
template <class T>
inline void lay_row(const T* row, int64_t size, float scale, float* out) {
  F32 factor = broadcast(scale);
  for (int64_t c = 0; c < size; c += kLanes) {
    int64_t count = least(kLanes, size - c);
    F32 x = count == kLanes ? load_entries(row + c) : load_some(row + c, count);
    store_first(out + c, mul(x, factor), static_cast<int>(count));
  }
}

inline float scale_at(const float* scales, int64_t row) { return scales ? scales[row] : 1.0f; }

// Rows of one part as columns from strip[c0] on, four keys at a time.
template <class T>
inline void lay_columns(const T* entries, const float* scales, int64_t size, const Place* places,
                        int64_t count, float* strip) {
  constexpr int64_t kPiece = 64;  // entries of a row that are turned at once
  float rows[4][kPiece];
  for (int64_t key = 0; key < count; key += 4) {
    int64_t here = least(4, count - key);
    for (int64_t c = 0; c < size; c += kPiece) {
      int64_t width = least(kPiece, size - c), whole = here == 4 ? width / 4 * 4 : 0;
      for (int64_t i = 0; i < here; i++) {
        int64_t row = places[key + i].row;
        lay_row(entries + row * size + c, width, scale_at(scales, row), rows[i]);
      }
      float* out = strip + c * kStrip + key;
      for (int64_t j = 0; j < whole; j += 4)
        transpose_tile(&rows[0][j], kPiece, out + j * kStrip, kStrip);
      for (int64_t i = 0; i < here; i++)
        for (int64_t j = whole; j < width; j++) out[j * kStrip + i] = rows[i][j];
    }
  }
}

template <class T>
void lay_latent_keys(const cw_latent_pages& p, const Place* places, Range keys, float* strip) {
  int64_t count = keys.end - keys.begin;
  lay_columns(static_cast<const T*>(p.latent), p.latent_scales, p.rank, places + keys.begin, count,
              strip);
  lay_columns(static_cast<const T*>(p.rotary), p.rotary_scales, p.rotary_size,
              places + keys.begin, count, strip + p.rank * kStrip);
}

template <class T>
void lay_latent_values(const cw_latent_pages& p, const Place* places, Range keys, int64_t padded,
                       float* strip) {
  for (int64_t i = keys.begin; i < keys.end; i++, strip += padded) {
    int64_t row = places[i].row;
    lay_row(static_cast<const T*>(p.latent) + row * p.rank, p.rank,
            scale_at(p.latent_scales, row), strip);
    for (int64_t c = p.rank; c < padded; c++) strip[c] = 0.0f;
  }
}

}  // namespace
