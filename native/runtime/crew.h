// Threads at one job: who does what of a phase, and when it is over.
//
// Each thread begins with a share of its own, which it takes in parts. When that is done and the
// phase is not over soon, it takes from the shares of others. A phase is over when all of it is
// done, whoever came: a thread that lost its core with no part in hand is not waited for, and
// passes the phases that it missed without doing anything.
#pragma once

#include <stdint.h>

#include <atomic>
#include <memory>

#include "signal.h"
#include "worker.h"

namespace cutaway {

class Crew {
 public:
  explicit Crew(int count);  // threads, the caller of open included: it is number 0
  void limit(int count) { count_ = count; }  // before the first job: where threads are refused

  // Opens a job; close it before anything that it reads goes away. Returns its number: ascending.
  uint64_t open();
  void close();

  // Enters the job that is open, if it is another than the one seen. Returns its number, or 0.
  uint64_t enter(int id, uint64_t seen);
  void leave(int id);

  // Whether threads had to wait for cores of late: then it does not pay to spin between jobs.
  bool is_crowded() const { return crowded_jobs_.load(std::memory_order_relaxed) > 0; }

  Worker worker(int id, uint64_t job, char* local, char* shared);
  bool take(Worker& worker, int64_t total, Range* part, int64_t parts);

 private:
  struct alignas(64) Seat {
    std::atomic<uint64_t> taken{0};  // a phase, and how many parts of this share are taken in it
    std::atomic<bool> is_inside{false};
  };

  bool is_over(const Worker& worker) const { return phase_.count() != worker.phase; }
  bool find(Worker& worker, int64_t total, Range* part);
  bool claim(Worker& worker, int64_t total, Range* part);
  bool claim_from_others(Worker& worker, int64_t total, Range* part);
  void report(Worker& worker, int64_t total);
  bool waits_in_vain(const Worker& worker, int most_pauses);
  void wait_outside(Worker& worker);

  int count_;
  std::unique_ptr<Seat[]> seats_;
  uint64_t last_job_ = 0;
  std::atomic<int> crowded_jobs_{0};
  uint64_t first_phase_ = 0;                  // of the job that is open
  int64_t least_parts_ = 1;                   // of a share in this job
  alignas(64) std::atomic<uint64_t> job_{0};  // that is open, or 0
  alignas(64) std::atomic<int64_t> num_done_{0};  // units of this phase
  Signal phase_;
  Signal left_;  // somebody left a job that is closed
};

}  // namespace cutaway
