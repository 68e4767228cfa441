// Linear maps with what stands before and after them: norm, adapters, bias, residual, gate.
#pragma once

#include "gate.h"
#include "float_product.h"

namespace {

// Rows that are multiplied while one panel is unpacked. Their activations (3 bytes for 2 inputs)
// stay in the second cache. Blocks are of nearly one size, so that none unpacks for few rows.
constexpr int64_t kRowBlockBytes = 384 * 1024;

inline int64_t rows_per_block(int64_t num_rows, int64_t num_columns) {
  int64_t most_rows = kRowBlockBytes / (num_columns * 3 / 2) / kTileRows * kTileRows;
  int64_t num_blocks = most(1, ceil_div(num_rows, most(2 * kTileRows, most_rows)));
  return most(1, ceil_div(ceil_div(num_rows, num_blocks), kTileRows)) * kTileRows;
}

constexpr size_t kProductBytes =
    kIntegerProductBytes > kFloatProductBytes ? kIntegerProductBytes : kFloatProductBytes;

// result = rows of x times panels of weight; one panel at a time where it holds integers.
void multiply(const cw_weight& w, int64_t panel, int64_t count, const Activations& x, int64_t row,
              int64_t num_rows, float* result, char* memory, const Destination& to) {
  const uint8_t* data = panel_of(w, panel);
  switch (w.kind) {
    case CW_F32:
      return multiply_floats<CW_F32>(data, count, x, row, num_rows, result, memory);
    case CW_F16:
      return multiply_floats<CW_F16>(data, count, x, row, num_rows, result, memory);
    case CW_BF16:
      return multiply_floats<CW_BF16>(data, count, x, row, num_rows, result, memory);
    case CW_Q8:
      return multiply_integers<CW_Q8>(data, x, row, num_rows, result, memory, to);
    case CW_Q4:
      return multiply_integers<CW_Q4>(data, x, row, num_rows, result, memory, to);
    case CW_Q4_AFFINE:
      return multiply_integers<CW_Q4_AFFINE>(data, x, row, num_rows, result, memory, to);
    case CW_Q8_AFFINE:
      return multiply_integers<CW_Q8_AFFINE>(data, x, row, num_rows, result, memory, to);
    case CW_Q8_HALVES:
      return multiply_integers<CW_Q8_HALVES>(data, x, row, num_rows, result, memory, to);
    default:
      return multiply_integers<CW_Q4_HALVES>(data, x, row, num_rows, result, memory, to);
  }
}

// Threads take outputs in units: some panels of one weight for one block of rows.
struct Unit {
  int64_t segment;
  int64_t panel;
  int64_t num_panels;
  int64_t row;
  int64_t num_rows;
};

class Units {
 public:
  Units(const cw_weight* segments, int64_t num_segments, int64_t num_rows)
      : segments_(segments),
        num_segments_(num_segments),
        num_rows_(num_rows),
        block_(rows_per_block(num_rows, segments[0].num_columns)) {
    for (int64_t s = 0; s < num_segments; s++) per_block_ += count_in(s);
  }

  int64_t count() const { return per_block_ * ceil_div(num_rows_, block_); }

  Unit operator[](int64_t index) const {
    int64_t row = index / per_block_ * block_;
    int64_t rest = index % per_block_;
    int64_t segment = 0;
    for (; rest >= count_in(segment); segment++) rest -= count_in(segment);
    int64_t panel = rest * width_of(segment);
    int64_t panels = least(width_of(segment), num_panels(segments_[segment].num_rows) - panel);
    return {segment, panel, panels, row, least(block_, num_rows_ - row)};
  }

 private:
  int64_t width_of(int64_t segment) const {
    return num_rows_ <= kDirectRows ? 1 : panels_per_unit(segments_[segment].kind);
  }
  int64_t count_in(int64_t segment) const {
    return ceil_div(num_panels(segments_[segment].num_rows), width_of(segment));
  }

  const cw_weight* segments_;
  int64_t num_segments_;
  int64_t num_rows_;
  int64_t block_;
  int64_t per_block_ = 0;
};

// residual + (value + bias), for rows of values value_stride apart and of outputs out_stride apart.
struct Finish {
  const float* values;
  int64_t value_stride;
  const float* bias;      // or null
  const float* residual;  // or null
  float* out;
  int64_t out_stride;
  int64_t num_rows;
};

inline void finish_panel(const Finish& f, int64_t column) {
  F32 bias = f.bias ? load(f.bias + column) : zeros();
  for (int64_t m = 0; m < f.num_rows; m++) {
    F32 v = load(f.values + m * f.value_stride + column);
    if (f.bias) v = add(v, bias);
    int64_t at = m * f.out_stride + column;
    if (f.residual) v = add(load(f.residual + at), v);
    store(f.out + at, v);
  }
}

inline void finish_last_panel(const Finish& f, int64_t column, int count) {
  F32 bias = f.bias ? load_first(f.bias + column, count) : zeros();
  for (int64_t m = 0; m < f.num_rows; m++) {
    F32 v = load(f.values + m * f.value_stride + column);
    if (f.bias) v = add(v, bias);
    int64_t at = m * f.out_stride + column;
    if (f.residual) v = add(load_first(f.residual + at, count), v);
    store_first(f.out + at, v, count);
  }
}

inline void finish(const Finish& f, int64_t num_columns) {
  int64_t column = 0;
  for (; column + kPanelRows <= num_columns; column += kPanelRows) finish_panel(f, column);
  if (column < num_columns) finish_last_panel(f, column, static_cast<int>(num_columns - column));
}

inline Preparation preparation_of(const cw_linear& a, const cw_step& step) {
  Preparation p{a.x,   a.norm, rows_of(a.rows, step), a.segments[0].num_columns,
                false, false,  false,           LowRank(a.pairs, a.num_segments, step)};
  for (int64_t s = 0; s < a.num_segments; s++) {
    p.needs_integers |= is_integer(a.segments[s].kind);
    p.needs_floats |= !is_integer(a.segments[s].kind);
    p.needs_bytes |= has_bytes(a.segments[s].kind);
  }
  return p;
}

struct LinearMemory {
  float* result;
  float* second;  // of a gated product
  char* product;

  LinearMemory(Arena& local, const Preparation& p, bool is_gated) {
    int64_t stride = kResultStride > kFloatResultStride ? kResultStride : kFloatResultStride;
    int64_t size = rows_per_block(p.num_rows, p.width) * stride;
    result = local.take<float>(size);
    second = is_gated ? local.take<float>(size) : nullptr;
    product = local.take<char>(kProductBytes);
  }
};

bool run_linear(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_linear& a = *static_cast<const cw_linear*>(arguments);
  Preparation p = preparation_of(a, step);
  Arena local(worker.local), shared(worker.shared);
  Prepared prepared(p, local, shared);
  LinearMemory memory(local, p, false);
  int64_t starts[CW_MAX_SEGMENTS], width = 0;  // first column of each segment
  for (int64_t s = 0; s < a.num_segments; s++) {
    starts[s] = width;
    width += a.segments[s].num_rows;
  }
  Units units(a.segments, a.num_segments, p.num_rows);
  if (!prepared.prepare_together(worker)) return false;
  Range range;
  while (worker.take(units.count(), &range)) {
    Activations x = prepared.rows();
    for (int64_t u = range.begin; u < range.end; u++) {
      Unit unit = units[u];
      const cw_weight& weight = a.segments[unit.segment];
      int64_t first = unit.panel * kPanelRows;
      Destination to{a.out + unit.row * width + starts[unit.segment] + first, width};
      multiply(weight, unit.panel, unit.num_panels, x, unit.row, unit.num_rows, memory.result,
               memory.product, to);
      widen(p.low, x.narrowed, unit.segment, unit.panel, unit.num_panels, unit.row, unit.num_rows,
            memory.result, result_stride(weight.kind));
      int64_t count = least(unit.num_panels * kPanelRows, weight.num_rows - first);
      const float* bias = a.biases[unit.segment];
      int64_t at = unit.row * width + starts[unit.segment] + first;
      finish({memory.result, result_stride(weight.kind), bias ? bias + first : nullptr,
              a.residual ? a.residual + at : nullptr, a.out + at, width, unit.num_rows},
             count);
    }
  }
  return worker.goes_on();
}

inline Preparation preparation_of(const cw_gated& a, const cw_step& step) {
  bool integers = is_integer(a.gate.kind) || is_integer(a.up.kind);
  bool floats = !is_integer(a.gate.kind) || !is_integer(a.up.kind);
  bool bytes = has_bytes(a.gate.kind) || has_bytes(a.up.kind);
  return {a.x,      a.norm, rows_of(a.rows, step), a.gate.num_columns, floats,
          integers, bytes,  LowRank(a.pairs, 2, step)};
}

bool run_gated(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_gated& a = *static_cast<const cw_gated*>(arguments);
  Preparation p = preparation_of(a, step);
  Arena local(worker.local), shared(worker.shared);
  Prepared prepared(p, local, shared);
  LinearMemory memory(local, p, true);
  Units units(&a.gate, 1, p.num_rows);
  if (!prepared.prepare_together(worker)) return false;
  Range range;
  while (worker.take(units.count(), &range)) {
    Activations x = prepared.rows();
    for (int64_t u = range.begin; u < range.end; u++) {
      Unit unit = units[u];
      int64_t first = unit.panel * kPanelRows;
      Destination to{a.out + unit.row * a.gate.num_rows + first, a.gate.num_rows};
      multiply(a.gate, unit.panel, unit.num_panels, x, unit.row, unit.num_rows, memory.result,
               memory.product, to);
      multiply(a.up, unit.panel, unit.num_panels, x, unit.row, unit.num_rows, memory.second,
               memory.product, to);
      int64_t count = least(unit.num_panels * kPanelRows, a.gate.num_rows - first);
      int64_t stride = result_stride(a.gate.kind);
      float* gate = memory.result;
      float* up = memory.second;
      widen(p.low, x.narrowed, 0, unit.panel, unit.num_panels, unit.row, unit.num_rows, gate,
            stride);
      widen(p.low, x.narrowed, 1, unit.panel, unit.num_panels, unit.row, unit.num_rows, up, stride);
      if (a.gate_bias)
        finish({gate, stride, a.gate_bias + first, nullptr, gate, stride, unit.num_rows}, count);
      if (a.up_bias)
        finish({up, stride, a.up_bias + first, nullptr, up, stride, unit.num_rows}, count);
      for (int64_t m = 0; m < unit.num_rows; m++)
        gate_row(a.activation, gate + m * stride, up + m * stride, count,
                 a.out + (unit.row + m) * a.gate.num_rows + first);
    }
  }
  return worker.goes_on();
}

inline cutaway::Scratch scratch_of(const Preparation& p, bool is_gated) {
  Arena local(nullptr), shared(nullptr);
  Prepared(p, local, shared);
  LinearMemory memory(local, p, is_gated);
  return {local.size(), shared.size()};
}

cutaway::Scratch linear_scratch(const void* arguments, const cw_step& step) {
  return scratch_of(preparation_of(*static_cast<const cw_linear*>(arguments), step), false);
}

cutaway::Scratch gated_scratch(const void* arguments, const cw_step& step) {
  return scratch_of(preparation_of(*static_cast<const cw_gated*>(arguments), step), true);
}

}  // namespace
