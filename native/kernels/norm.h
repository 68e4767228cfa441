// Root-mean-square norm of rows, alone or with a residual added first.
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

// out = x * (1 / sqrt(mean(x^2) + epsilon)) * weight.
inline void normalize(const float* x, const float* weight, double epsilon, int64_t width,
                      float* out) {
  float mean = sum_of_squares(x, width) / static_cast<float>(width);
  F32 inverse = broadcast(1.0f / __builtin_sqrtf(mean + static_cast<float>(epsilon)));
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    store(out + i, mul(mul(load(x + i), inverse), load(weight + i)));
  int rest = static_cast<int>(width - i);
  if (!rest) return;
  store_first(out + i, mul(mul(load_first(x + i, rest), inverse), load_first(weight + i, rest)),
              rest);
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
      const float* x = a.x + r * a.width;
      if (a.add) {
        float* sum = a.sum + r * a.width;
        add_rows(x, a.add + r * a.width, a.width, sum);
        x = sum;
      }
      float* out = a.out + r * a.width;
      normalize(x, a.weight, a.epsilon, a.width, out);
      if (a.residual) add_rows(a.residual + r * a.width, out, a.width, out);
    }
  });
}

}  // namespace
