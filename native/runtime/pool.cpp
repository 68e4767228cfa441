#include "pool.h"

#include <pthread.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "crew.h"
#include "spin.h"

namespace cutaway {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kCrowdedSpin = 50;  // microseconds
constexpr int kPausesPerLook = 64;  // between two looks at the clock

char* allocate(size_t size) {
  void* memory = nullptr;
  return posix_memalign(&memory, 64, size) == 0 ? static_cast<char*>(memory) : nullptr;
}

}  // namespace

struct Pool::State {
  std::mutex callers;  // one run, or one change of threads, at a time

  // The job: written by the caller before it is opened.
  Body body = nullptr;
  const void* context = nullptr;
  std::atomic<bool> stops{false};
  int count = 1;  // threads, the caller included
  std::unique_ptr<Crew> crew;
  Signal calls;  // a job was opened, or all are to stop
  std::atomic<int64_t> spin_microseconds{50000};

  std::vector<std::thread> workers;
  std::vector<char*> locals;  // scratch of each thread
  char* shared = nullptr;
  Scratch sizes;

  void wait_for_call(uint64_t seen) {
    int64_t most = spin_microseconds.load();
    if (crew->is_crowded() && most > kCrowdedSpin) most = kCrowdedSpin;
    auto end = Clock::now() + std::chrono::microseconds(most);
    do {
      for (int i = 0; i < kPausesPerLook; i++) {
        if (calls.count() != seen) return;
        pause_briefly();
      }
    } while (Clock::now() < end);
    while (calls.count() == seen) calls.doze(seen);
  }

  void work(int id) {
    uint64_t last = 0;
    while (true) {
      uint64_t seen = calls.count();
      if (stops) return;
      uint64_t job = crew->enter(id, last);
      if (!job) {
        wait_for_call(seen);
        continue;
      }
      last = job;
      Worker worker = crew->worker(id, job, locals[static_cast<size_t>(id)], shared);
      body(context, worker);
      if (worker.goes_on()) crew->leave(id);
    }
  }
};

Pool::Pool() : state_(new State) {}

Pool& Pool::get() {
  static Pool* pool = nullptr;
  static std::once_flag once;
  std::call_once(once, [] {
    pool = new Pool;
    // A forked child has none of the threads, and perhaps a locked mutex: it starts anew.
    pthread_atfork(nullptr, nullptr, [] { pool->state_ = new State; });
  });
  return *pool;
}

int Pool::num_threads() {
  std::lock_guard<std::mutex> lock(state_->callers);
  return state_->count;
}

bool Pool::set_num_threads(int count, int64_t spin_microseconds) {
  if (count < 1 || count > kMostThreads || spin_microseconds < 0) return false;
  std::lock_guard<std::mutex> lock(state_->callers);
  state_->spin_microseconds.store(spin_microseconds);
  if (count != state_->count) {
    stop_workers();
    start_workers(count);
  }
  return state_->count == count;
}

void Pool::stop_workers() {
  state_->stops = true;
  state_->calls.ring();
  for (std::thread& worker : state_->workers) worker.join();
  state_->workers.clear();
  state_->stops = false;
  state_->count = 1;
}

// Where the system refuses a thread, the pool goes on with those that it has.
void Pool::start_workers(int count) {
  State* state = state_;
  state->workers.reserve(static_cast<size_t>(count));
  state->crew.reset(new Crew(count));
  for (int id = 1; id < count; id++) {
    try {
      state->workers.emplace_back([state, id] { state->work(id); });
    } catch (const std::exception&) {
      break;
    }
    state->count = id + 1;
  }
  state->crew->limit(state->count);
}

bool Pool::grow(Scratch scratch) {
  State& s = *state_;
  bool fits = scratch.local <= s.sizes.local && s.locals.size() >= static_cast<size_t>(s.count);
  if (!fits) {
    if (scratch.local > s.sizes.local) s.sizes.local = scratch.local;
    for (char* memory : s.locals) free(memory);
    s.locals.clear();
    s.locals.reserve(static_cast<size_t>(s.count));
    for (int id = 0; id < s.count; id++) {
      char* memory = allocate(s.sizes.local);
      if (!memory) return false;
      s.locals.push_back(memory);
    }
  }
  if (scratch.shared > s.sizes.shared || !s.shared) {
    free(s.shared);
    s.sizes.shared = 0;
    s.shared = allocate(scratch.shared + 64);
    if (!s.shared) return false;
    s.sizes.shared = scratch.shared;
  }
  return true;
}

bool Pool::run(Body body, const void* context, Scratch scratch) {
  State& s = *state_;
  std::lock_guard<std::mutex> lock(s.callers);
  if (!grow(scratch)) return false;
  if (s.count == 1) {
    Worker alone{0, 1, s.locals[0], s.shared, nullptr, 1, 0, 0, 1, 0, {0, 0}, 0, 0};
    body(context, alone);
    return true;
  }
  s.body = body;
  s.context = context;
  Worker worker = s.crew->worker(0, s.crew->open(), s.locals[0], s.shared);
  s.calls.ring();
  body(context, worker);
  s.crew->close();
  return true;
}

}  // namespace cutaway
