// The feed-forward layer's activations, alone and as gates.
#pragma once

#include "exponential.h"
#include "share.h"

namespace {

inline F32 silu_times(F32 gate, F32 up) {
  F32 decay = fused_exponential(sub(zeros(), gate));
  return mul(div(gate, add(broadcast(1.0f), decay)), up);
}

// x / 2 * (1 + tanh(u)) is x / (1 + e^(-2 u)), with u = sqrt(2 / pi) * (x + 0.044715 x^3).
inline F32 gelu_times(F32 gate, F32 up) {
  F32 cube = mul(mul(gate, gate), mul(gate, broadcast(0.044715f)));
  F32 twice = mul(add(gate, cube), broadcast(-1.5957691216057308f));
  return mul(div(gate, add(broadcast(1.0f), fused_exponential(twice))), up);
}

// x / 2 * (1 + erf(x / sqrt(2))), to about 2e-7 of x: 1 - erf(z) is a polynomial of 1 / (1 + p z)
// times e^(-z^2) for z above 0. Source: Abramowitz and Stegun, 7.1.26.
inline F32 gelu_erf_times(F32 gate, F32 up) {
  constexpr float kPowers[5] = {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f,
                                0.254829592f};
  F32 one = broadcast(1.0f), z = mul(gate, broadcast(0.70710678118654752f));
  F32 size = max_of(z, sub(zeros(), z));
  F32 t = div(one, fma(size, broadcast(0.3275911f), one));
  F32 tail = broadcast(kPowers[0]);
  for (int i = 1; i < 5; i++) tail = fma(tail, t, broadcast(kPowers[i]));
  tail = mul(mul(tail, t), fused_exponential(sub(zeros(), mul(z, z))));
  // The share of x that stays: half the tail below 0, the rest above.
  F32 half = mul(tail, broadcast(0.5f));
  F32 above = max_of(zeros(), gate), below = min_of(zeros(), gate);
  F32 kept = add(mul(above, sub(one, half)), mul(below, half));
  return mul(kept, up);
}

inline F32 sigmoid_times(F32 gate, F32 up) {
  F32 one = broadcast(1.0f);
  return mul(div(one, add(one, fused_exponential(sub(zeros(), gate)))), up);
}

inline F32 relu_times(F32 gate, F32 up) { return mul(max_of(zeros(), gate), up); }

template <class Function>
inline void each_gate(const float* gate, const float* up, int64_t width, float* out,
                      const Function& function) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(out + i, function(load(gate + i), load(up + i)));
  int rest = static_cast<int>(width - i);
  if (rest)
    store_first(out + i, function(load_first(gate + i, rest), load_first(up + i, rest)), rest);
}

inline void gate_row(int64_t activation, const float* gate, const float* up, int64_t width,
                     float* out) {
  switch (activation) {
    case CW_SILU:
      return each_gate(gate, up, width, out, silu_times);
    case CW_GELU_TANH:
      return each_gate(gate, up, width, out, gelu_times);
    case CW_GELU:
      return each_gate(gate, up, width, out, gelu_erf_times);
    default:
      return each_gate(gate, up, width, out, relu_times);
  }
}

// g / (1 + e^(-alpha g)) * (u + 1), g at most limit and u within limit of 0. Source: gpt-oss.
inline void clamped_gate_row(const float* gate, const float* up, int64_t width, float alpha,
                             float limit, float* out) {
  F32 high = broadcast(limit), low = broadcast(-limit), one = broadcast(1.0f);
  F32 slope = broadcast(-alpha);
  each_gate(gate, up, width, out, [&](F32 g, F32 u) {
    g = min_of(high, g), u = max_of(low, min_of(high, u));  // the second argument's NaN stays
    F32 share = div(one, add(one, fused_exponential(mul(g, slope))));
    return mul(mul(g, share), add(u, one));
  });
}

// One head's numbers: function of gate and up, times multiplier, after the residual.
template <class Function>
inline void gate_head(const cw_gate& a, const float* gate, const float* up, const float* residual,
                      float* out, const Function& function) {
  F32 one = broadcast(1.0f), multiplier = broadcast(static_cast<float>(a.multiplier));
  F32 scalar = broadcast(gate[0]);
  for (int64_t i = 0; i < a.width; i += kLanes) {
    int count = static_cast<int>(least(kLanes, a.width - i));
    F32 g = a.is_scalar ? scalar : load_first(gate + i, count);
    F32 v = mul(function(g, up ? load_first(up + i, count) : one), multiplier);
    if (residual) v = add(load_first(residual + i, count), v);
    store_first(out + i, v, count);
  }
}

template <class Function>
bool each_head(const cw_gate& a, const cw_step& step, cutaway::Worker& worker,
               const Function& function) {
  return each(worker, rows_of(a.rows, step) * a.num_heads, [&](Range range) {
    for (int64_t i = range.begin; i < range.end; i++) {
      int64_t row = i / a.num_heads, head = i % a.num_heads;
      const float* up = a.up ? a.up + row * a.up_stride + head * a.up_head_stride : nullptr;
      gate_head(a, a.gate + row * a.gate_stride + head * a.gate_head_stride, up,
                a.residual ? a.residual + i * a.width : nullptr, a.out + i * a.width, function);
    }
  });
}

bool run_gate(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_gate& a = *static_cast<const cw_gate*>(arguments);
  float cap = static_cast<float>(a.cap);
  switch (a.activation) {
    case CW_SILU:
      return each_head(a, step, worker, silu_times);
    case CW_GELU_TANH:
      return each_head(a, step, worker, gelu_times);
    case CW_GELU:
      return each_head(a, step, worker, gelu_erf_times);
    case CW_RELU:
      return each_head(a, step, worker, relu_times);
    case CW_SIGMOID:
      return each_head(a, step, worker, sigmoid_times);
    case CW_CAPPED:
      return each_head(a, step, worker, [&](F32 x, F32 up) {
        F32 tangent = tangent_of_twice(mul(x, broadcast(2.0f / cap)));
        return mul(mul(broadcast(cap), tangent), up);
      });
    default:
      return each_head(a, step, worker, mul);
  }
}

}  // namespace
