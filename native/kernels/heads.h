// One head at a time: normalized, turned by its position, and written into the pages of the cache.
#pragma once

#include "../runtime/half.h"
#include "activations.h"
#include "norm.h"
#include "share.h"

namespace {

constexpr int64_t kMostHeadSize = 256;

// Pairs (i, i + half): products and their sum are rounded one after the other.
inline void turn_head(const float* x, const float* cos, const float* sin, int64_t half,
                      int64_t head_size, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    F32 first = load(x + i), second = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(out + i, sub(mul(first, c), mul(second, s)));
    store(out + half + i, add(mul(second, c), mul(first, s)));
  }
  if (i < half) {
    int rest = static_cast<int>(half - i);
    F32 first = load_first(x + i, rest), second = load_first(x + half + i, rest);
    F32 c = load_first(cos + i, rest), s = load_first(sin + i, rest);
    store_first(out + i, sub(mul(first, c), mul(second, s)), rest);
    store_first(out + half + i, add(mul(second, c), mul(first, s)), rest);
  }
  for (i = 2 * half; i < head_size; i++) out[i] = x[i];
}

struct Turning {
  const float* norm_weight;
  double epsilon;
  const cw_rotation* rotation;
  int64_t head_size;

  void operator()(const float* x, int64_t token, const cw_step& step, float* out) const {
    float normed[kMostHeadSize];
    if (norm_weight) {
      normalize(x, norm_weight, epsilon, head_size, normed);
      x = normed;
    }
    int64_t row = rotation->by_token ? token : step.positions[token];
    turn_head(x, rotation->cos + row * rotation->half, rotation->sin + row * rotation->half,
              rotation->half, head_size, out);
  }
};

void run_rotate(const void* arguments, const cw_step& step, const cutaway::Worker& worker) {
  const cw_rotate& a = *static_cast<const cw_rotate*>(arguments);
  Turning turn{a.norm_weight, a.epsilon, &a.rotation, a.head_size};
  Range range = share(rows_of(a.rows, step) * a.num_heads, worker);
  for (int64_t i = range.begin; i < range.end; i++) {
    int64_t token = i / a.num_heads, head = i % a.num_heads;
    turn(a.x + token * a.x_stride + head * a.head_size, token, step,
         a.out + token * a.out_stride + head * a.head_size);
  }
}

// Pages keep each head of a page apart, so that sixteen keys are read as columns without being
// turned: keys as [N, G, C, P], values as [N, G, P, C], their scales as [N, G, P]. A row counts the
// tokens of one head over all pages.
struct Place {
  int64_t row;
  int64_t key;  // element at which a key's first entry lies; the others follow page_size apart
};

inline Place place_of(const cw_pages& pages, int64_t page, int64_t group, int64_t offset) {
  int64_t first = (page * pages.num_groups + group) * pages.page_size;
  return {first + offset, first * pages.head_size + offset};
}

inline Place place_of_slot(const cw_pages& pages, int64_t slot, int64_t group) {
  // Divisions of 64 bits take 90 cycles on many CPUs, those of 32 bits 26.
  bool is_narrow = (slot | pages.page_size) >> 32 == 0;
  int64_t page = is_narrow ? static_cast<uint32_t>(slot) / static_cast<uint32_t>(pages.page_size)
                           : slot / pages.page_size;
  return place_of(pages, page, group, slot - page * pages.page_size);
}

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
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

// Returns the scale, largest / 127. As integers, so that NaN counts as the largest; NaN or infinity
// makes the scale so.
inline float to_entries(const float* x, int64_t count, int8_t* out) {
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
  bool is_small = largest < kSmallestScaled;
  if (is_small || !(largest <= kLargestFinite)) {
    for (int64_t i = 0; i < count; i++) out[i] = 0;
    return is_small ? 0.0f : largest / 127.0f;
  }
  F32 inverse = broadcast(127.0f / largest);
  for (int64_t i = 0; i < count; i += kLanes) {
    int here = static_cast<int>(least(kLanes, count - i));
    store_int8(out + i, to_int(mul(load_first(x + i, here), inverse)));
  }
  return largest / 127.0f;
}

template <class T>
void write_key(const cw_pages& pages, Place place, const float* x) {
  T entries[kMostHeadSize];
  float scale = to_entries(x, pages.head_size, entries);
  T* out = static_cast<T*>(pages.keys) + place.key;
  for (int64_t c = 0; c < pages.head_size; c++) out[c * pages.page_size] = entries[c];
  if (pages.key_scales) pages.key_scales[place.row] = scale;
}

template <class T>
void write_value(const cw_pages& pages, Place place, const float* x) {
  T entries[kMostHeadSize];
  float scale = to_entries(x, pages.head_size, entries);
  __builtin_memcpy(static_cast<T*>(pages.values) + place.row * pages.head_size, entries,
                   static_cast<size_t>(pages.head_size) * sizeof(T));
  if (pages.value_scales) pages.value_scales[place.row] = scale;
}

// Calls body with an entry of the type in which pages keep keys and values.
template <class Body>
inline void with_entries(const cw_pages& pages, const Body& body) {
  switch (pages.kind) {
    case CW_F32:
      return body(float{});
    case CW_F16:
      return body(Half{});
    case CW_BF16:
      return body(Brain{});
    default:
      return body(int8_t{});
  }
}

void run_store(const void* arguments, const cw_step& step, const cutaway::Worker& worker) {
  const cw_store& a = *static_cast<const cw_store*>(arguments);
  const int64_t* slots = step.groups[a.pages.group].slots;
  int64_t size = a.pages.head_size;
  Range tokens = share(rows_of(a.rows, step), worker);
  with_entries(a.pages, [&](auto entry) {
    using T = decltype(entry);
    for (int64_t t = tokens.begin; t < tokens.end; t++)
      for (int64_t g = 0; g < a.pages.num_groups; g++) {
        Place place = place_of_slot(a.pages, slots[t], g);
        write_key<T>(a.pages, place, a.key + t * a.key_stride + g * size);
        write_value<T>(a.pages, place, a.value + t * a.value_stride + g * size);
      }
  });
}

}  // namespace
