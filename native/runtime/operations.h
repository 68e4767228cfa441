// What each instruction set provides: one function per operation, and the scratch that it needs.
#pragma once

#include "../cutaway.h"
#include "learn.h"
#include "worker.h"

namespace cutaway {

// False when the job ended without this thread: see Worker.
using Operation = bool (*)(const void* arguments, const cw_step& step, Worker& worker);
using ScratchOf = Scratch (*)(const void* arguments, const cw_step& step);

struct Isa {
  const char* name;
  Operation run[CW_NUM_OPERATIONS];
  ScratchOf scratch[CW_NUM_OPERATIONS];
  void (*unpack_row)(const cw_weight& weight, int64_t row, float* out);
  uint64_t (*sum_words)(const uint8_t* buffer, int64_t num_bytes);  // reads all: for bandwidth
  void (*learn_curve)(const Curve& curve, Range rows);
  void (*learn_rms)(const RmsRows& rms, Range blocks);
  void (*learn_attention)(const OwnAttention& attention, Range units, float* memory);
  void (*learn_pack)(const RowProducts& products, Range tiles);
  void (*learn_rows)(const RowProducts& products, Range rows);
  void (*learn_columns)(const ColumnProducts& products, Range heights, float* memory);
  int64_t learn_tile_columns;  // that learn_pack puts side by side
};

}  // namespace cutaway
