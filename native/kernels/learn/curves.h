// Activations and gates of whole tensors with their gradients, for training.
#pragma once

#include "../gate.h"
#include "lanes.h"

namespace {

// The logistic function, and 1 less it: by the power itself, which keeps its digits far out.
struct Shares {
  F32 share, rest;
  explicit Shares(F32 x) {
    F32 one = broadcast(1.0f), decay = fused_exponential(sub(zeros(), x));
    share = div(one, add(one, decay));
    rest = mul(decay, share);
  }
};

// Of x * s(x): s + x * s * (1 - s), with s the logistic function.
inline F32 silu_slope(F32 x) {
  Shares of(x);
  return mul(of.share, fma(x, of.rest, broadcast(1.0f)));
}

// The same with s of 2 u: its slope is 2 u' * s * (1 - s).
inline F32 gelu_slope(F32 x) {
  constexpr float kTwice = 1.5957691216057308f, kCubic = 0.044715f;
  F32 square = mul(x, x), twice = broadcast(kTwice);
  F32 steep = fma(square, broadcast(3.0f * kTwice * kCubic), twice);
  Shares of(mul(x, fma(square, broadcast(kTwice * kCubic), twice)));
  return mul(of.share, fma(mul(x, steep), of.rest, broadcast(1.0f)));
}

// The share of x that stays, and x times the bell curve at x.
inline F32 gelu_erf_slope(F32 x) {
  F32 one = broadcast(1.0f);
  F32 half_square = mul(mul(x, x), broadcast(-0.5f));
  F32 size = max_of(x, sub(zeros(), x));
  constexpr float kPowers[5] = {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f,
                                0.254829592f};
  F32 bell = fused_exponential(half_square);
  F32 t = div(one, fma(size, broadcast(0.3275911f * 0.70710678118654752f), one));
  F32 tail = broadcast(kPowers[0]);
  for (int i = 1; i < 5; i++) tail = fma(tail, t, broadcast(kPowers[i]));
  F32 half = mul(mul(mul(tail, t), bell), broadcast(0.5f));
  F32 is_above = min_of(one, max_of(zeros(), mul(x, broadcast(0x1p126f))));
  // half below zero, 1 - half above; x near zero has the half on both sides.
  F32 kept = fma(is_above, sub(one, add(half, half)), half);
  return fma(mul(x, broadcast(0.39894228040143268f)), bell, kept);
}

// Types of their own, so that each is compiled into its loop.
struct Silu {
  static F32 own(F32 x) { return silu_times(x, broadcast(1.0f)); }
  static F32 slope(F32 x) { return silu_slope(x); }
};
struct GeluTanh {
  static F32 own(F32 x) { return gelu_times(x, broadcast(1.0f)); }
  static F32 slope(F32 x) { return gelu_slope(x); }
};
struct Gelu {
  static F32 own(F32 x) { return gelu_erf_times(x, broadcast(1.0f)); }
  static F32 slope(F32 x) { return gelu_erf_slope(x); }
};

template <class Function>
CW_WHOLE void learn_row(const cutaway::Curve& c, int64_t row) {
  int64_t width = c.width, wide = c.is_gate ? 2 * width : width;
  const float* x = c.x + row * wide;
  const float* up = x + width;
  const float* grad = c.grad ? c.grad + row * width : nullptr;
  float* out = c.out + row * (grad ? wide : width);
  if (!grad)
    return each_lanes(width, [&](int64_t i, auto lanes) {
      F32 made = Function::own(lanes.get(x + i));
      lanes.put(out + i, c.is_gate ? mul(made, lanes.get(up + i)) : made);
    });
  each_lanes(width, [&](int64_t i, auto lanes) {
    F32 v = lanes.get(x + i), pull = lanes.get(grad + i), pulled = mul(pull, Function::slope(v));
    if (c.is_gate) {
      lanes.put(out + width + i, mul(pull, Function::own(v)));
      pulled = mul(pulled, lanes.get(up + i));
    }
    lanes.put(out + i, pulled);
  });
}

void learn_curve(const cutaway::Curve& c, Range rows) {
  for (int64_t row = rows.begin; row < rows.end; row++) {
    if (c.kind == CW_SILU) learn_row<Silu>(c, row);
    if (c.kind == CW_GELU_TANH) learn_row<GeluTanh>(c, row);
    if (c.kind == CW_GELU) learn_row<Gelu>(c, row);
  }
}

}  // namespace
