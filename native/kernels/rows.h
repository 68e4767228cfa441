// Rows of tables: embeddings of token ids, and the hidden rows that want logits.
#pragma once

#include "panel.h"
#include "share.h"

namespace {

inline float one_f16(uint16_t half) {
  uint16_t padded[kLanes] = {half};
  float out[kLanes];
  store(out, load_f16(padded));
  return out[0];
}

inline float one_bf16(uint16_t half) {
  uint32_t bits = static_cast<uint32_t>(half) << 16;
  float out;
  __builtin_memcpy(&out, &bits, 4);
  return out;
}

inline uint16_t half_at(const uint8_t* p) {
  uint16_t half;
  __builtin_memcpy(&half, p, 2);
  return half;
}

// Product and sum are rounded one after the other, as the file format's own code does.
void unpack_group(int64_t kind, const uint8_t* group, int64_t lane, float* out) {
  int64_t parts = num_parts(kind);
  const uint8_t* quants = group + group_bytes(kind) - quant_bytes(kind) + 4 * lane;
  for (int64_t part = 0; part < parts; part++) {
    const uint8_t* scales = group + kScaleBytes * part + 2 * lane;
    float scale = one_f16(half_at(scales));
    float minimum = is_affine(kind) ? one_f16(half_at(scales + kScaleBytes * parts)) : 0.0f;
    int64_t end = kGroupColumns / parts * (part + 1);
    for (int64_t k = end - kGroupColumns / parts; k < end; k++) {
      int64_t word = has_bytes(kind) ? k / 4 : k % 16 / 4;
      int byte = quants[64 * word + k % 4];
      int quant = byte - 128;
      if (!has_bytes(kind)) quant = (k < 16 ? byte & 15 : byte >> 4) - (kind == CW_Q4 ? 8 : 0);
      float value = scale * static_cast<float>(quant);
      out[k] = is_affine(kind) ? value + minimum : value;
    }
  }
}

void unpack_row(const cw_weight& weight, int64_t row, float* out) {
  const uint8_t* panel = panel_of(weight, row / kPanelRows);
  int64_t lane = row % kPanelRows;
  if (is_integer(weight.kind)) {
    for (int64_t g = 0; g < weight.num_columns / kGroupColumns; g++)
      unpack_group(weight.kind, panel + g * group_bytes(weight.kind), lane,
                   out + g * kGroupColumns);
    return;
  }
  int64_t bytes = float_bytes(weight.kind);
  for (int64_t k = 0; k < weight.num_columns; k++) {
    const uint8_t* at = panel + (k * kPanelRows + lane) * bytes;
    if (weight.kind == CW_F32) __builtin_memcpy(out + k, at, 4);
    if (weight.kind == CW_F16) out[k] = one_f16(half_at(at));
    if (weight.kind == CW_BF16) out[k] = one_bf16(half_at(at));
  }
}

bool run_gather(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_gather& a = *static_cast<const cw_gather*>(arguments);
  float multiplier = static_cast<float>(a.multiplier);
  return each(worker, rows_of(a.rows, step), [&](Range rows) {
    for (int64_t t = rows.begin; t < rows.end; t++) {
      float* out = a.out + t * a.table.num_columns;
      unpack_row(a.table, step.token_ids[t], out);
      if (multiplier == 1.0f) continue;
      for (int64_t k = 0; k < a.table.num_columns; k++) out[k] *= multiplier;
    }
  });
}

bool run_take(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_take& a = *static_cast<const cw_take*>(arguments);
  return each(worker, step.num_logit_rows, [&](Range rows) {
    for (int64_t r = rows.begin; r < rows.end; r++)
      __builtin_memcpy(a.out + r * a.width, a.x + step.logit_rows[r] * a.width,
                       static_cast<size_t>(a.width) * sizeof(float));
  });
}

}  // namespace
