// Short convolutions of each channel alone, over the tokens of each sequence.
//
// Order of summation: products oldest first, then the bias; chunk borders do not matter.
#pragma once

#include "delta.h"
#include "share.h"

namespace {

constexpr int64_t kChannelsAtOnce = 64;

// Some channels of one sequence's new tokens; the last inputs stay in pages.
inline void convolve_channels(const cw_convolve& a, const Span& span, int64_t first, int64_t size,
                              float* room) {
  int64_t before = a.width - 1, row = before * a.channels;
  size_t bytes = static_cast<size_t>(size) * sizeof(float);
  // Copied first: the page that is read may be one that is written.
  float* earlier = room;                           // [width - 1, size]
  float* turned = room + before * kChannelsAtOnce;  // [width, size]
  for (int64_t b = 0; b < before; b++) {
    float* to = earlier + b * kChannelsAtOnce;
    if (span.start)
      __builtin_memcpy(to, a.inputs + span.page_before(a) * row + b * a.channels + first, bytes);
    else
      __builtin_memset(to, 0, bytes);
  }
  for (int64_t tap = 0; tap < a.width; tap++)
    for (int64_t i = 0; i < size; i++)
      turned[tap * kChannelsAtOnce + i] = a.weights[(first + i) * a.width + tap];
  auto input = [&](int64_t number) -> const float* {
    if (number < 0) return earlier + (before + number) * kChannelsAtOnce;
    return a.x + (span.first + number) * a.channels + first;
  };
  for (int64_t n = 0; n < span.count; n++) {
    float* out = a.out + (span.first + n) * a.channels + first;
    for (int64_t i = 0; i < size; i += kLanes) {
      int count = static_cast<int>(least(kLanes, size - i));
      F32 sum = zeros();
      for (int64_t tap = 0; tap < a.width; tap++) {
        F32 product = mul(load_first(input(n - before + tap) + i, count),
                          load_first(turned + tap * kChannelsAtOnce + i, count));
        sum = tap ? add(sum, product) : product;
      }
      if (a.bias) sum = add(sum, load_first(a.bias + first + i, count));
      store_first(out + i, sum, count);
    }
    if (!span.is_left(a, n)) continue;
    float* kept = a.inputs + span.page_after(a, n) * row + first;
    for (int64_t b = 0; b < before; b++)
      __builtin_memcpy(kept + b * a.channels, input(n + 1 - before + b), bytes);
  }
}

inline float* convolve_room(const cw_convolve& a, Arena& local) {
  return local.take<float>((2 * a.width - 1) * kChannelsAtOnce + kLanes);
}

bool run_convolve(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_convolve& a = *static_cast<const cw_convolve*>(arguments);
  Arena local(worker.local);
  float* room = convolve_room(a, local);
  int64_t parts = (a.channels + kChannelsAtOnce - 1) / kChannelsAtOnce;
  return each(worker, step.num_sequences * parts, [&](Range range) {
    for (int64_t i = range.begin; i < range.end; i++) {
      int64_t first = i % parts * kChannelsAtOnce;
      convolve_channels(a, Span(a, step, i / parts), first,
                        least(kChannelsAtOnce, a.channels - first), room);
    }
  });
}

cutaway::Scratch convolve_scratch(const void* arguments, const cw_step&) {
  Arena local(nullptr);
  convolve_room(*static_cast<const cw_convolve*>(arguments), local);
  return {local.size(), 0};
}

}  // namespace
