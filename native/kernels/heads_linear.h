// A linear map of its own for each head: the matrices of latent attention that are absorbed.
#pragma once

#include "experts.h"

namespace {

// Rows of all heads as products take them: those of a head in turn, each head from a tile on.
struct HeadRows {
  int64_t num_rows;    // of a head
  int64_t block_rows;  // that are multiplied together
  int64_t stride;      // places of a head
  PreparedRows rows;
  float* result;
  char* product;

  HeadRows(const cw_heads& a, const cw_step& step, Arena& local, Arena& shared)
      : num_rows(rows_of(a.rows, step)),
        block_rows(rows_per_block(num_rows, a.stack.num_columns)),
        stride(ceil_div(num_rows, kTileRows) * kTileRows),
        rows(a.stack.kind, stride * a.stack.num_matrices, a.stack.num_columns, shared) {
    result = local.take<float>(block_rows * kFloatResultStride);
    product = local.take<char>(kProductBytes);
  }
};

bool run_heads(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_heads& a = *static_cast<const cw_heads*>(arguments);
  const cw_stack& stack = a.stack;
  Arena local(worker.local), shared(worker.shared);
  HeadRows m(a, step, local, shared);
  int64_t heads = stack.num_matrices, width = stack.num_columns;
  if (!each(worker, m.num_rows * heads, [&](Range range) {
        for (int64_t i = range.begin; i < range.end; i++) {
          int64_t token = i / heads, head = i % heads, place = head * m.stride + token;
          const float* x = a.x + token * a.x_stride + head * a.x_head_stride;
          Preparation p{x, {}, 1, width, false, m.rows.groups != nullptr, false};
          if (m.rows.floats)
            __builtin_memcpy(m.rows.floats + place * width, x,
                             static_cast<size_t>(width) * sizeof(float));
          else
            prepare_row(p, 0, place, nullptr, m.rows.groups, m.rows.splits);
        }
      }))
    return false;
  int64_t wide = m.num_rows <= kDirectRows ? 1 : panels_per_unit(stack.kind);
  int64_t per_block = ceil_div(num_panels(stack.num_rows), wide);
  int64_t blocks = ceil_div(m.num_rows, m.block_rows), per_head = per_block * blocks;
  return each(worker, per_head * heads, [&](Range range) {
    for (int64_t u = range.begin; u < range.end; u++) {
      int64_t head = u / per_head, row = u % per_head / per_block * m.block_rows;
      int64_t panel = u % per_block * wide, first = panel * kPanelRows;
      int64_t count = least(wide, num_panels(stack.num_rows) - panel);
      int64_t num_rows = least(m.block_rows, m.num_rows - row);
      float* out = a.out + row * a.out_stride + head * a.out_head_stride + first;
      multiply(matrix_of(stack, head), panel, count, m.rows.rows(), head * m.stride + row, num_rows,
               m.result, m.product, {out, a.out_stride});
      finish({m.result, result_stride(stack.kind), nullptr, nullptr, out, a.out_stride, num_rows},
             least(count * kPanelRows, stack.num_rows - first));
    }
  });
}

cutaway::Scratch heads_scratch(const void* arguments, const cw_step& step) {
  Arena local(nullptr), shared(nullptr);
  HeadRows memory(*static_cast<const cw_heads*>(arguments), step, local, shared);
  return {local.size(), shared.size()};
}

}  // namespace
