// One thread's view of a running operation: who it is, where to wait, and its scratch memory.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>

namespace cutaway {

// All threads wait until the last one comes. A wait spins, and yields when it takes long.
class Barrier {
 public:
  void wait(int count);

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};
};

struct Worker {
  int id;
  int count;
  Barrier* everyone;
  char* local;   // scratch of this thread
  char* shared;  // scratch of all threads

  void barrier() const {
    if (count > 1) everyone->wait(count);
  }
};

// Bytes of scratch that an operation needs.
struct Scratch {
  size_t local = 0;
  size_t shared = 0;
};

}  // namespace cutaway
