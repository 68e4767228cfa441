// Every number that an operation or a step brings is checked before a pointer is followed.
#pragma once

#include "../cutaway.h"

namespace cutaway {

// What a step must keep within, gathered from a program's operations.
struct Limits {
  int64_t most_rows[2];  // by cw_rows
  int64_t vocab_size;
  int64_t num_positions;
  int64_t num_adapters;
  bool needs_tokens;  // token ids
  bool needs_positions;
  bool needs_logit_rows;
  struct Group {
    bool needs_slots;
    bool needs_table;
    int64_t num_pages;
    int64_t page_size;
  } groups[CW_MAX_GROUPS];

  Limits();
};

// The size of an operation's struct; 0 for an unknown operation.
int64_t size_of(int64_t operation);

bool is_sound(const cw_weight& weight);

// Checks an operation's own sizes and pointers, and narrows limits to what its buffers hold.
cw_status check_operation(int64_t operation, const void* arguments, Limits& limits);

cw_status check_step(const cw_step& step, const Limits& limits);

}  // namespace cutaway
