#include "pool.h"

#include <pthread.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cutaway {

namespace {

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

using Clock = std::chrono::steady_clock;

// A wait this long means that another process has the core of whom we wait for.
constexpr int kPausesBeforeYield = 4000;  // about 100 microseconds
constexpr int kPausesPerLook = 64;        // between two looks at the clock

char* allocate(size_t size) {
  void* memory = nullptr;
  return posix_memalign(&memory, 64, size) == 0 ? static_cast<char*>(memory) : nullptr;
}

}  // namespace

void Barrier::wait(int count) {
  int generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == count - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    return;
  }
  for (int pauses = 0; generation_.load(std::memory_order_acquire) == generation; pauses++) {
    if (pauses < kPausesBeforeYield)
      pause_briefly();
    else
      std::this_thread::yield();
  }
}

struct Pool::State {
  std::mutex callers;  // one run, or one change of threads, at a time

  // The job: written by the caller before epoch goes up.
  Body body = nullptr;
  const void* context = nullptr;
  bool stops = false;
  int count = 1;  // threads, the caller included
  alignas(64) std::atomic<uint64_t> epoch{0};
  Barrier everyone;

  std::mutex sleep;
  std::condition_variable wake;
  std::atomic<int> num_asleep{0};
  std::atomic<int64_t> spin_microseconds{50000};

  std::vector<std::thread> workers;
  std::vector<char*> locals;  // scratch of each thread
  char* shared = nullptr;
  Scratch sizes;

  void run_as(int id) {
    body(context, Worker{id, count, &everyone, locals[static_cast<size_t>(id)], shared});
    if (count > 1) everyone.wait(count);
  }

  void wait_for_epoch_after(uint64_t seen) {
    auto end = Clock::now() + std::chrono::microseconds(spin_microseconds.load());
    do {
      for (int i = 0; i < kPausesPerLook; i++) {
        if (epoch.load(std::memory_order_acquire) != seen) return;
        pause_briefly();
      }
    } while (Clock::now() < end);
    std::unique_lock<std::mutex> lock(sleep);
    num_asleep.fetch_add(1);
    wake.wait(lock, [&] { return epoch.load() != seen; });
    num_asleep.fetch_sub(1);
  }

  void announce() {
    epoch.fetch_add(1);
    if (num_asleep.load() == 0) return;
    std::lock_guard<std::mutex> lock(sleep);
    wake.notify_all();
  }

  void work(int id, uint64_t seen) {
    while (true) {
      wait_for_epoch_after(seen++);
      if (stops) return;
      run_as(id);
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
  state_->announce();
  for (std::thread& worker : state_->workers) worker.join();
  state_->workers.clear();
  state_->stops = false;
  state_->count = 1;
}

// Where the system refuses a thread, the pool goes on with those that it has.
void Pool::start_workers(int count) {
  uint64_t seen = state_->epoch.load();
  State* state = state_;
  for (int id = 1; id < count; id++) {
    try {
      state->workers.emplace_back([state, id, seen] { state->work(id, seen); });
    } catch (const std::system_error&) {
      break;
    }
    state->count = id + 1;
  }
}

bool Pool::grow(Scratch scratch) {
  State& s = *state_;
  bool fits = scratch.local <= s.sizes.local && s.locals.size() >= static_cast<size_t>(s.count);
  if (!fits) {
    if (scratch.local > s.sizes.local) s.sizes.local = scratch.local;
    for (char* memory : s.locals) free(memory);
    s.locals.clear();
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
  std::lock_guard<std::mutex> lock(state_->callers);
  if (!grow(scratch)) return false;
  state_->body = body;
  state_->context = context;
  if (state_->count > 1) state_->announce();
  state_->run_as(0);
  return true;
}

}  // namespace cutaway
