// Attention whose keys and values are one row per token that all heads share.
//
// The order of summation is that of other attention; rows are laid out as strips, each for some
// heads, which are then what a key-value head is elsewhere.
#pragma once

#include "attention.h"

namespace {

constexpr int64_t kHeadsOfUnit = 16;  // at most, that share a strip

// A row of numbers to its slot, in the cache's dtype.
template <class T>
inline void write_row(const float* x, int64_t size, int64_t row, void* pages, float* scales) {
  T entries[4096 + kLanes];
  float scale = to_entries(x, size, entries);
  __builtin_memcpy(static_cast<T*>(pages) + row * size, entries,
                   static_cast<size_t>(size) * sizeof(T));
  if (scales) scales[row] = scale;
}

bool run_store_latent(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_store_latent& a = *static_cast<const cw_store_latent*>(arguments);
  const cw_latent_pages& p = a.pages;
  const int64_t* slots = step.groups[p.group].slots;
  return with_entries(p.kind, [&](auto entry) {
    using T = decltype(entry);
    return each(worker, rows_of(a.rows, step), [&](Range tokens) {
      for (int64_t t = tokens.begin; t < tokens.end; t++) {
        write_row<T>(a.latent + t * a.latent_stride, p.rank, slots[t], p.latent, p.latent_scales);
        write_row<T>(a.rotary + t * a.rotary_stride, p.rotary_size, slots[t], p.rotary,
                     p.rotary_scales);
      }
    });
  });
}

// What attention reads of ordinary pages: sizes.
inline cw_pages sizes_of(const cw_attend_latent& a) {
  int64_t shared = least(kHeadsOfUnit, a.num_heads);
  while (a.num_heads % shared) shared--;
  const cw_latent_pages& p = a.pages;
  return {nullptr, nullptr, nullptr,     nullptr,     p.kind,
          p.group, p.num_pages, p.page_size, a.num_heads / shared, p.rank};
}

inline Heads heads_of(const cw_attend_latent& a, const cw_pages& sizes) {
  const cw_scoring& s = a.scoring;
  return {a.query,
          a.query_stride,
          a.num_heads,
          static_cast<float>(s.softmax_scale),
          static_cast<float>(s.cap),
          width_of(s.window),
          s.num_first,
          s.sinks,
          &sizes,
          a.out,
          a.pages.rank + a.pages.rotary_size,
          &a.pages};
}

bool run_attend_latent(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_attend_latent& a = *static_cast<const cw_attend_latent*>(arguments);
  cw_pages sizes = sizes_of(a);
  Arena local(worker.local), shared(worker.shared);
  return attend_pages(heads_of(a, sizes), step, worker, local, shared);
}

cutaway::Scratch attend_latent_scratch(const void* arguments, const cw_step& step) {
  const cw_attend_latent& a = *static_cast<const cw_attend_latent*>(arguments);
  cw_pages sizes = sizes_of(a);
  return attend_scratch_of(heads_of(a, sizes), step, 0);
}

}  // namespace
