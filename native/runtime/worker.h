// One thread's view of a running job: which part of it to do next, and its scratch memory.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace cutaway {

class Crew;

struct Range {
  int64_t begin;
  int64_t end;
};

// A job is a row of phases: what all threads together finish before any of them goes on. Every
// thread passes all phases in the same order, and in each takes parts until there are none.
struct Worker {
  int id;
  int count;
  char* local;   // scratch of this thread
  char* shared;  // scratch of all threads

  // The next part of [0, total) for this thread; false when the whole phase is done, by whomever.
  // What a phase reads may be touched only between take and take: without a part in hand the
  // others may be phases ahead. parts: into how many a share is cut at least, more for work that
  // is uneven, since each costs a compare-and-swap. Both are the same on every thread.
  bool take(int64_t total, Range* part, int64_t parts = 1);

  // Whether the job still runs. If not its arguments may be gone: return and touch nothing.
  bool goes_on() const { return job != 0; }

  // The crew's notes.
  Crew* crew;  // null for a thread that is alone
  uint64_t job;
  uint64_t phase;
  int owner;           // from whose share parts are taken
  int64_t parts;       // of a share
  int64_t piece;       // units of a part of this share; 0: not known yet
  Range share;         // of the owner
  int64_t in_hand;     // units of the part taken last
  int64_t unreported;  // units done in this phase that the others do not know of
};

// Bytes of scratch that an operation needs.
struct Scratch {
  size_t local = 0;
  size_t shared = 0;
};

}  // namespace cutaway
