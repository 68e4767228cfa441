// The feed-forward layer's activation, alone.
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
  if (activation == CW_SILU)
    each_gate(gate, up, width, out, silu_times);
  else
    each_gate(gate, up, width, out, gelu_times);
}

bool run_gate(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_gate& a = *static_cast<const cw_gate*>(arguments);
  return each(worker, rows_of(a.rows, step), [&](Range rows) {
    for (int64_t r = rows.begin; r < rows.end; r++)
      gate_row(a.activation, a.gate + r * a.gate_stride, a.up + r * a.up_stride, a.width,
               a.out + r * a.width);
  });
}

}  // namespace
