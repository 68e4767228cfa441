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
};

}  // namespace cutaway
