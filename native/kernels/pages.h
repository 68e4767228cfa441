// Keys and values written into the pages of the cache, in the cache's dtype.
#pragma once

#include "../runtime/half.h"
#include "../simd/transpose.h"
#include "activations.h"
#include "heads.h"
#include "share.h"

namespace {

// Pages keep each head of a page apart, so that sixteen keys are read as columns without being
// turned: keys as [N, G, C, P], values as [N, G, P, C], their scales as [N, G, P]. A row counts the
// tokens of one head over all pages.
struct Place {
  int64_t row;
  int64_t key;  // element at which a key's first entry lies; the others follow page_size apart
};

inline Place place_in(const cw_pages& pages, int64_t page, int64_t group, int64_t num_groups,
                      int64_t offset) {
  int64_t first = (page * num_groups + group) * pages.page_size;
  return {first + offset, first * pages.head_size + offset};
}
inline Place place_of(const cw_pages& pages, int64_t page, int64_t group, int64_t offset) {
  return place_in(pages, page, group, pages.num_groups, offset);
}

struct Slot {
  int64_t page;
  int64_t offset;
};

inline Slot slot_of(int64_t page_size, int64_t slot) {
  // Divisions of 64 bits take 90 cycles on many CPUs, those of 32 bits 26.
  bool is_narrow = (slot | page_size) >> 32 == 0;
  int64_t page = is_narrow ? static_cast<uint32_t>(slot) / static_cast<uint32_t>(page_size)
                           : slot / page_size;
  return {page, slot - page * page_size};
}

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};
struct Eighth {
  uint8_t bits;
};

// A head's numbers as the cache keeps them; out has room for whole registers.
inline float to_entries(const float* x, int64_t count, float* out) {
  __builtin_memcpy(out, x, static_cast<size_t>(count) * sizeof(float));
  return 1.0f;
}

inline float to_entries(const float* x, int64_t count, Half* out) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store_f16(&out[i].bits, load(x + i));
  int rest = static_cast<int>(count - i);
  if (rest) store_f16(&out[i].bits, load_first(x + i, rest));
  return 1.0f;
}

inline float to_entries(const float* x, int64_t count, Brain* out) {
  for (int64_t i = 0; i < count; i++) out[i].bits = to_bf16(x[i]);
  return 1.0f;
}

// As integers, so that NaN counts as the largest.
inline float largest_magnitude(const float* x, int64_t count) {
  I32 magnitude = int_broadcast(0x7fffffff);
  I32 most[4] = {int_zeros(), int_zeros(), int_zeros(), int_zeros()};
  int32_t bits[4];
  for (int64_t i = 0; i < count; i += kLanes) {
    int here = static_cast<int>(least(kLanes, count - i));
    most[0] = int_max(most[0], int_and(bits_of(load_first(x + i, here)), magnitude));
  }
  int_max_four(most, bits);
  float largest;
  __builtin_memcpy(&largest, bits, sizeof largest);
  return largest;
}

// Numbers times limit / largest, each register by put(place, numbers); returns the scale, largest /
// limit. NaN or infinity makes the scale so, and all numbers 0.
template <class Put>
inline float to_scaled(const float* x, int64_t count, float limit, const Put& put) {
  float largest = largest_magnitude(x, count);
  bool is_small = largest < kSmallestScaled, is_finite = largest <= kLargestFinite;
  F32 inverse = broadcast(is_small || !is_finite ? 0.0f : limit / largest);
  for (int64_t i = 0; i < count; i += kLanes) {
    int here = static_cast<int>(least(kLanes, count - i));
    put(i, is_finite ? mul(load_first(x + i, here), inverse) : zeros());
  }
  return is_small ? 0.0f : largest / limit;
}

inline float to_entries(const float* x, int64_t count, int8_t* out) {
  return to_scaled(x, count, 127.0f, [&](int64_t i, F32 v) { store_int8(out + i, to_int(v)); });
}

// The nearest number of four exponent bits and three of mantissa, ties to even; x is at most 448.
inline uint8_t to_e4m3(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  uint32_t sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
  if (size < 0x3c800000) {  // below 2^-6 numbers are multiples of 2^-9
    float whole = __builtin_rintf((sign ? -x : x) * 512.0f);
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(whole));
  }
  size += 0x7ffff + (size >> 20 & 1);
  return static_cast<uint8_t>(sign | ((size >> 20) - (120 << 3)));
}

inline float to_entries(const float* x, int64_t count, Eighth* out) {
  return to_scaled(x, count, 448.0f, [&](int64_t i, F32 v) {
    float numbers[kLanes];
    store(numbers, v);
    for (int j = 0; j < kLanes; j++) out[i + j].bits = to_e4m3(numbers[j]);
  });
}

// Tokens whose keys lie side by side in one page.
struct Stretch {
  Place place;  // of the first
  int64_t count;
};

constexpr int64_t kMostStretch = 16;  // tokens that are turned into columns together

inline Stretch stretch_at(const cw_pages& pages, const int64_t* slots, Range tokens,
                          int64_t group) {
  const int64_t* first = slots + tokens.begin;
  Slot slot = slot_of(pages.page_size, *first);
  int64_t most_count = least(least(kMostStretch, tokens.end - tokens.begin),
                             pages.page_size - slot.offset);
  int64_t count = 1;
  while (count < most_count && first[count] == *first + count) count++;
  return {place_of(pages, slot.page, group, slot.offset), count};
}

// Rows of count entries become columns: entry c of row i goes to out[c * out_stride + i].
template <class T>
inline void to_columns(const T* rows, int64_t stride, int64_t count, int64_t size, T* out,
                       int64_t out_stride) {
  constexpr int64_t kTile = kTileSize<T>;
  int64_t i = 0, whole = size / kTile * kTile;
  for (; i + kTile <= count; i += kTile) {
    const T* from = rows + i * stride;
    for (int64_t c = 0; c < whole; c += kTile)
      transpose_tile(from + c, stride, out + c * out_stride + i, out_stride);
    for (int64_t j = 0; j < kTile; j++)
      for (int64_t c = whole; c < size; c++) out[c * out_stride + i + j] = from[j * stride + c];
  }
  for (; i < count; i++)
    for (int64_t c = 0; c < size; c++) out[c * out_stride + i] = rows[i * stride + c];
}

// One head's keys of some tokens, whole columns of a page at a time: token by token, every entry
// would be a store of its own. key_of(token, room) gives a key, perhaps in room.
template <class T, class KeyOf>
void write_keys(const cw_pages& pages, const int64_t* slots, Range tokens, int64_t group,
                const KeyOf& key_of) {
  int64_t size = pages.head_size, stride = ceil_div(size, kLanes) * kLanes;
  T entries[kMostStretch * kMostHeadSize];
  float room[kMostHeadSize];
  while (tokens.begin < tokens.end) {
    Stretch stretch = stretch_at(pages, slots, tokens, group);
    for (int64_t i = 0; i < stretch.count; i++) {
      float scale = to_entries(key_of(tokens.begin + i, room), size, entries + i * stride);
      if (pages.key_scales) pages.key_scales[stretch.place.row + i] = scale;
    }
    to_columns(entries, stride, stretch.count, size,
               static_cast<T*>(pages.keys) + stretch.place.key, pages.page_size);
    tokens.begin += stretch.count;
  }
}

template <class T>
void write_value(const cw_pages& pages, int64_t slot, int64_t group, const float* x) {
  Slot at = slot_of(pages.page_size, slot);
  Place place = place_of(pages, at.page, group, at.offset);
  T entries[kMostHeadSize];
  float scale = to_entries(x, pages.head_size, entries);
  __builtin_memcpy(static_cast<T*>(pages.values) + place.row * pages.head_size, entries,
                   static_cast<size_t>(pages.head_size) * sizeof(T));
  if (pages.value_scales) pages.value_scales[place.row] = scale;
}

// What body makes of an entry of the type in which pages keep keys and values.
template <class Body>
inline auto with_entries(int64_t kind, const Body& body) {
  switch (kind) {
    case CW_F32:
      return body(float{});
    case CW_F16:
      return body(Half{});
    case CW_BF16:
      return body(Brain{});
    case CW_E4M3:
      return body(Eighth{});
    default:
      return body(int8_t{});
  }
}

bool run_store(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_store& a = *static_cast<const cw_store*>(arguments);
  const int64_t* slots = step.groups[a.pages.group].slots;
  int64_t size = a.pages.head_size;
  int64_t num_tokens = rows_of(a.rows, step);
  return with_entries(a.pages.kind, [&](auto entry) {
    using T = decltype(entry);
    return each(worker, ceil_div(num_tokens, kMostStretch), [&](Range blocks) {
      Range tokens{blocks.begin * kMostStretch, least(blocks.end * kMostStretch, num_tokens)};
      for (int64_t g = 0; g < a.pages.num_groups; g++) {
        write_keys<T>(a.pages, slots, tokens, g, [&](int64_t t, float*) {
          return a.key + t * a.key_stride + g * size;
        });
        for (int64_t t = tokens.begin; t < tokens.end; t++)
          write_value<T>(a.pages, slots[t], g, a.value + t * a.value_stride + g * size);
      }
    });
  });
}

}  // namespace
