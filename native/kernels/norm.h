// Norms of rows, by root mean square or by mean and deviation, alone or of a sum.
#pragma once

#include "share.h"

namespace {

// Squares are summed in four times sixteen lanes, so that additions need not wait for each other.
inline float sum_of_squares(const float* x, int64_t width) {
  F32 sums[4] = {zeros(), zeros(), zeros(), zeros()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes)
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      F32 v = load(x + i + j * kLanes);
      sums[j] = fma(v, v, sums[j]);
    }
  for (int j = 0; i < width; i += kLanes, j++) {
    F32 v = load_first(x + i, static_cast<int>(least(kLanes, width - i)));
    sums[j] = fma(v, v, sums[j]);
  }
  return sum_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

inline float sum_of_entries(const float* x, int64_t width) {
  F32 sums[4] = {zeros(), zeros(), zeros(), zeros()};
  for (int64_t i = 0, j = 0; i < width; i += kLanes, j = (j + 1) % 4)
    sums[j] = add(sums[j], load_first(x + i, static_cast<int>(least(kLanes, width - i))));
  return sum_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// out = value * weight + bias, either of which may be null, for each register of a row.
template <class Value>
inline void finish_norm(const cw_norming& norm, int64_t width, float* out, const Value& value) {
  int64_t i = 0;
  if (norm.weight && !norm.bias)
    for (; i + kLanes <= width; i += kLanes)
      store(out + i, mul(value(i, kLanes), load(norm.weight + i)));
  for (; i < width; i += kLanes) {
    int count = static_cast<int>(least(kLanes, width - i));
    F32 v = value(i, count);
    if (norm.weight) v = mul(v, load_first(norm.weight + i, count));
    if (norm.bias) v = add(v, load_first(norm.bias + i, count));
    store_first(out + i, v, count);
  }
}

inline float inverse_root(float squares, double epsilon, int64_t width) {
  float mean = squares / static_cast<float>(width);
  return 1.0f / __builtin_sqrtf(mean + static_cast<float>(epsilon));
}

// x is a row of its own, or out.
inline void normalize(const float* x, const cw_norming& norm, int64_t width, float* out) {
  if (norm.kind == CW_LAYER_NORM) {
    F32 mean = broadcast(sum_of_entries(x, width) / static_cast<float>(width));
    for (int64_t i = 0; i < width; i += kLanes) {
      int count = static_cast<int>(least(kLanes, width - i));
      store_first(out + i, sub(load_first(x + i, count), mean), count);
    }
    x = out;
  }
  F32 inverse = broadcast(inverse_root(sum_of_squares(x, width), norm.epsilon, width));
  finish_norm(norm, width, out, [&](int64_t i, int64_t count) {
    F32 v = count == kLanes ? load(x + i) : load_first(x + i, static_cast<int>(count));
    return mul(v, inverse);
  });
}

inline void add_rows(const float* a, const float* b, int64_t width, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(out + i, add(load(a + i), load(b + i)));
  int rest = static_cast<int>(width - i);
  if (rest) store_first(out + i, add(load_first(a + i, rest), load_first(b + i, rest)), rest);
}

bool run_norm(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_norm& a = *static_cast<const cw_norm*>(arguments);
  return each(worker, rows_of(a.rows, step), [&](Range rows) {
    for (int64_t r = rows.begin; r < rows.end; r++) {
      const float* x = a.x + r * a.x_stride;
      if (a.add) {
        float* sum = a.sum + r * a.width;
        add_rows(x, a.add + r * a.width, a.width, sum);
        x = sum;
      }
      float* out = a.out + r * a.width;
      normalize(x, a.norm, a.width, out);
      if (a.residual) add_rows(a.residual + r * a.width, out, a.width, out);
    }
  });
}

}  // namespace
