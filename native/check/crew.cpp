// Compares what threads compute together with what one computes, while they sleep with parts in
// hand, come late, and are more than the machine has cores. Status 0: all is equal.
//
//     crew [jobs]

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "../runtime/pool.h"

namespace {

using cutaway::Pool;
using cutaway::Range;
using cutaway::Worker;

uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 31) * UINT64_C(0x9E3779B97F4A7C15);
  return x ^ x >> 29;
}

void sleep_for(int64_t microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

// Each phase makes a row of numbers of the one before, which it needs whole: entry i reads entries
// i and i * 7 + phase. Two rows take turns, so a thread that is late writes over what is needed.
struct Job {
  uint64_t seed;
  std::vector<int64_t> sizes;  // of the phases
  std::vector<uint64_t> rows[2];
  int sleepy;               // the thread that sleeps now and then
  bool is_late;             // and comes late
  std::atomic<int64_t> units{0};

  Job(uint64_t its_seed, int num_threads) : seed(its_seed) {
    int64_t most = 1;
    for (uint64_t i = 0; i < 3 + mixed(seed) % 20; i++) {
      sizes.push_back(static_cast<int64_t>(mixed(seed + i) % (i % 3 ? 9 : 300)));
      if (sizes.back() > most) most = sizes.back();
    }
    for (auto& row : rows)
      for (int64_t i = 0; i < most; i++) row.push_back(mixed(seed ^ static_cast<uint64_t>(i)));
    sleepy = static_cast<int>(mixed(seed + 5) % static_cast<uint64_t>(num_threads));
    is_late = mixed(seed + 6) % 4 == 0;
  }

  void run_part(size_t phase, Range part) {
    const std::vector<uint64_t>& from = rows[phase % 2];
    std::vector<uint64_t>& to = rows[1 - phase % 2];
    for (int64_t i = part.begin; i < part.end; i++) {
      size_t at = static_cast<size_t>(i);
      to[at] = mixed(from[at] + from[(at * 7 + phase) % from.size()]);
    }
    units.fetch_add(part.end - part.begin, std::memory_order_relaxed);
  }
};

void run_job(const void* context, Worker& worker) {
  Job& job = **static_cast<const std::unique_ptr<Job>*>(context);
  int sleepy = job.sleepy;
  if (job.is_late && worker.id == sleepy && worker.id) sleep_for(500);
  for (size_t phase = 0; phase < job.sizes.size(); phase++) {
    Range part;
    while (worker.take(job.sizes[phase], &part, 1 + static_cast<int64_t>(phase % 3) * 4)) {
      if (worker.id == sleepy && mixed(job.seed + phase) % 8 == 0) sleep_for(300);
      job.run_part(phase, part);
    }
    if (!worker.goes_on()) return;
  }
}

bool is_right(uint64_t seed, int num_threads) {
  auto shared = std::make_unique<Job>(seed, num_threads);
  Job alone(seed, num_threads);
  int64_t total = 0;
  for (size_t phase = 0; phase < alone.sizes.size(); phase++) {
    alone.run_part(phase, {0, alone.sizes[phase]});
    total += alone.sizes[phase];
  }
  if (!Pool::get().run(run_job, &shared, {})) return false;
  return shared->rows[0] == alone.rows[0] && shared->rows[1] == alone.rows[1] &&
         shared->units == total;  // and its memory goes: nobody may come after
}

// One thread sleeps long with a part in hand: the others do all the rest meanwhile.
struct Held {
  std::atomic<int64_t> done{0};
  std::atomic<int64_t> before_waking{-1};
  std::atomic<bool> is_held{false};
  int64_t total = 64;
};

void hold_a_part(const void* context, Worker& worker) {
  Held& held = *static_cast<Held*>(const_cast<void*>(context));
  Range part;
  while (worker.take(held.total, &part, 8)) {
    int64_t size = part.end - part.begin;
    if (!held.is_held.exchange(true)) {
      for (int i = 0; i < 20000 && held.done < held.total - size; i++) sleep_for(1000);
      held.before_waking = held.done + size;
    }
    held.done += size;
  }
}

bool others_go_on() {
  Held held;
  return Pool::get().run(hold_a_part, &held, {}) && held.done == held.total &&
         held.before_waking == held.total;
}

}  // namespace

int main(int count, char** values) {
  uint64_t num_jobs = count > 1 ? static_cast<uint64_t>(atoll(values[1])) : 300;
  for (int threads : {1, 2, 3, 8}) {
    for (int64_t spin : {0, 1000}) {
      if (!Pool::get().set_num_threads(threads, spin)) return printf("no %d threads\n", threads), 2;
      for (uint64_t seed = 0; seed < num_jobs; seed++)
        if (!is_right(seed, threads))
          return printf("%d threads, job %d differs\n", threads, static_cast<int>(seed)), 1;
    }
    if (threads > 1 && !others_go_on())
      return printf("%d threads wait for one that sleeps\n", threads), 1;
  }
  printf("all equal\n");
  return Pool::get().set_num_threads(1, 0) ? 0 : 2;
}
