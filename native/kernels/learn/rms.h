// The gradient of rows over their root mean square, for training.
#pragma once

#include "../norm.h"
#include "lanes.h"

namespace {

// Of a row r * x * w, with r = (mean of squares + epsilon)^(-1/2). With g the gradient times
// w it is r * (g - x * r^2 * mean(g * x)); that of w is the gradient times x * r, over all rows.
CW_WHOLE void pull_rms_row(const cutaway::RmsRows& a, const float* x, const float* grad, float* out,
                         float* of_weight) {
  int64_t width = a.width;
  float root = inverse_root(sum_of_squares(x, width), a.epsilon, width);
  F32 inverse = broadcast(root), sums = zeros();
  each_lanes(width, [&](int64_t i, auto lanes) {
    F32 v = lanes.get(x + i), g = lanes.get(grad + i);
    lanes.put(of_weight + i, fma(g, mul(v, inverse), lanes.get(of_weight + i)));
    sums = fma(mul(g, lanes.get(a.weight + i)), v, sums);
  });
  F32 back = broadcast(root * root * sum_lanes(sums) / static_cast<float>(width));
  each_lanes(width, [&](int64_t i, auto lanes) {
    F32 g = mul(lanes.get(grad + i), lanes.get(a.weight + i));
    lanes.put(out + i, mul(sub(g, mul(lanes.get(x + i), back)), inverse));
  });
}

void learn_rms(const cutaway::RmsRows& a, Range blocks) {
  for (int64_t block = blocks.begin; block < blocks.end; block++) {
    float* of_weight = a.of_weight + block * a.width;
    __builtin_memset(of_weight, 0, static_cast<size_t>(a.width) * sizeof(float));
    int64_t end = least(a.rows, (block + 1) * cutaway::kRowsOfBlock);
    for (int64_t row = block * cutaway::kRowsOfBlock; row < end; row++) {
      int64_t at = row * a.width;
      pull_rms_row(a, a.x + at, a.grad + at, a.out + at, of_weight);
    }
  }
}

}  // namespace
