// Threads that run one operation after another together, and the scratch memory that they use.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "worker.h"

namespace cutaway {

constexpr int kMostThreads = 1024;

class Pool {
 public:
  using Body = void (*)(const void* context, Worker& worker);

  // The only one. It is never destroyed: its threads may outlive main.
  static Pool& get();

  bool set_num_threads(int count, int64_t spin_microseconds);
  int num_threads();

  // Runs body on every thread, the caller included, and returns when all are done. Callers on
  // several threads wait for each other. False when memory for scratch cannot be had.
  bool run(Body body, const void* context, Scratch scratch);

 private:
  struct State;
  Pool();
  void start_workers(int count);
  void stop_workers();
  bool grow(Scratch scratch);

  State* state_;
};

}  // namespace cutaway
