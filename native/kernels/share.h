// How rows, outputs and scratch memory are laid out, and work is divided among threads.
#pragma once

#include "../cutaway.h"
#include "../runtime/worker.h"

namespace {

using cutaway::Range;

// Calls body with parts of [0, total) until all threads together have done the whole: one phase.
// False when the job ended without this thread: its arguments may be gone, so return at once.
template <class Body>
[[nodiscard]] inline bool each(cutaway::Worker& worker, int64_t total, const Body& body,
                               int64_t parts = 1) {
  Range part;
  while (worker.take(total, &part, parts)) body(part);
  return worker.goes_on();
}

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t rows_of(int64_t rows, const cw_step& step) {
  return rows == CW_TOKENS ? step.num_tokens : step.num_logit_rows;
}

// Hands out pieces of scratch memory. From a null base it only counts, so one function both
// measures and divides.
class Arena {
 public:
  explicit Arena(char* base) : base_(reinterpret_cast<uintptr_t>(base)) {}

  template <class T>
  T* take(int64_t count) {
    uintptr_t piece = base_ + size_;
    size_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(piece);
  }
  size_t size() const { return size_; }

 private:
  uintptr_t base_;
  size_t size_ = 0;
};

}  // namespace
