// One head at a time: normalized, and turned by its position.
#pragma once

#include "../cutaway.h"
#include "norm.h"
#include "share.h"

namespace {

constexpr int64_t kMostHeadSize = 512;

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
  const cw_norming* norm;
  const cw_rotation* rotation;
  int64_t head_size;

  void operator()(const float* x, int64_t token, const cw_step& step, float* out) const {
    float normed[kMostHeadSize];
    if (norm->kind) {
      normalize(x, *norm, head_size, normed);
      x = normed;
    }
    if (rotation->half == 0) {
      __builtin_memmove(out, x, static_cast<size_t>(head_size) * sizeof(float));
      return;
    }
    if (rotation->are_neighbours) {
      float halves[kMostHeadSize];
      int64_t half = rotation->half;
      for (int64_t i = 0; i < half; i++) halves[i] = x[2 * i], halves[half + i] = x[2 * i + 1];
      for (int64_t i = 2 * half; i < head_size; i++) halves[i] = x[i];
      __builtin_memcpy(normed, halves, static_cast<size_t>(head_size) * sizeof(float));
      x = normed;
    }
    int64_t row = rotation->by_token ? token : step.positions[token];
    turn_head(x, rotation->cos + row * rotation->half, rotation->sin + row * rotation->half,
              rotation->half, head_size, out);
  }
};

bool run_rotate(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_rotate& a = *static_cast<const cw_rotate*>(arguments);
  Turning turn{&a.norm, &a.rotation, a.head_size};
  return each(worker, rows_of(a.rows, step) * a.num_heads, [&](Range range) {
    for (int64_t i = range.begin; i < range.end; i++) {
      int64_t token = i / a.num_heads, head = i % a.num_heads;
      turn(a.x + token * a.x_stride + head * a.x_head_stride, token, step,
           a.out + token * a.out_stride + head * a.out_head_stride);
    }
  });
}

}  // namespace
