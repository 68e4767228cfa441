// Recorded operations that run one after another on the pool: one call for a whole step.

#include <string.h>

#include <atomic>
#include <chrono>
#include <new>
#include <vector>

#include "check.h"
#include "dispatch.h"
#include "guard.h"
#include "pool.h"

namespace {

using cutaway::Limits;
using cutaway::Pool;
using cutaway::Scratch;
using cutaway::Worker;

struct Recorded {
  int64_t operation;
  size_t offset;  // of its arguments
};

constexpr size_t kLine = 64;  // bytes of a cache line

// One operation, seen by all threads.
struct Call {
  const void* arguments;
  const cw_step* step;
  cutaway::Operation run;
};

void run_call(const void* context, Worker& worker) {
  const Call& call = *static_cast<const Call*>(context);
  call.run(call.arguments, *call.step, worker);
}

}  // namespace

struct cw_program {
  std::vector<Recorded> recorded;
  std::vector<char> arguments;
  Limits limits;

  const void* arguments_of(const Recorded& each) const { return arguments.data() + each.offset; }

  // Asks for the arguments of an operation. A step's weights have swept them out of the caches since
  // the last one, and each of some hundred operations would wait for a handful of lines.
  void prefetch(size_t index) const {
    if (index >= recorded.size()) return;
    size_t end = index + 1 < recorded.size() ? recorded[index + 1].offset : arguments.size();
    for (size_t at = recorded[index].offset; at < end; at += kLine)
      __builtin_prefetch(arguments.data() + at);
  }

  Scratch scratch(const cutaway::Isa& isa, const cw_step& step) const {
    Scratch most;
    for (const Recorded& each : recorded) {
      cutaway::ScratchOf scratch_of = isa.scratch[each.operation];
      if (!scratch_of) continue;
      Scratch one = scratch_of(arguments_of(each), step);
      if (one.local > most.local) most.local = one.local;
      if (one.shared > most.shared) most.shared = one.shared;
    }
    return most;
  }
};

namespace {

// Operations that were run, by all programs: how a watchdog sees that a long step moves.
std::atomic<int64_t> operations_run{0};

struct Replay {
  const cw_program* program;
  const cw_step* step;
  const cutaway::Isa* isa;
  size_t first, end;     // operations that are run
  int64_t* nanoseconds;  // per operation, or null
};

void replay(const void* context, Worker& worker) {
  const Replay& r = *static_cast<const Replay*>(context);
  bool is_timed = r.nanoseconds && worker.id == 0;
  using Clock = std::chrono::steady_clock;
  Clock::time_point before = Clock::now();
  for (size_t i = r.first; i < r.end; i++) {
    const Recorded& each = r.program->recorded[i];
    r.program->prefetch(i + 1);
    if (!r.isa->run[each.operation](r.program->arguments_of(each), *r.step, worker)) return;
    if (worker.id == 0) operations_run.fetch_add(1, std::memory_order_relaxed);
    if (!is_timed) continue;
    Clock::time_point now = Clock::now();
    r.nanoseconds[i] = std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count();
    before = now;
  }
}

int64_t run(const cw_program* program, const cw_step* step, size_t first, size_t end,
            int64_t* nanoseconds) {
  cw_status status = cutaway::check_step(*step, program->limits);
  if (status != CW_OK) return status;
  const cutaway::Isa& isa = cutaway::isa_in_use();
  Replay context{program, step, &isa, first, end, nanoseconds};
  return cutaway::guarded([&] {
    return Pool::get().run(replay, &context, program->scratch(isa, *step)) ? CW_OK : CW_NO_MEMORY;
  });
}

}  // namespace

extern "C" {

int64_t cw_version(void) { return CW_VERSION; }
int64_t cw_sizeof(int64_t operation) { return cutaway::size_of(operation); }

int64_t cw_set_num_threads(int64_t count, int64_t spin_microseconds) {
  if (count < 1 || count > cutaway::kMostThreads) return CW_BAD_ARGUMENT;
  return cutaway::guarded([&] {
    bool done = Pool::get().set_num_threads(static_cast<int>(count), spin_microseconds);
    return done ? CW_OK : CW_BAD_ARGUMENT;
  });
}

int64_t cw_num_threads(void) {
  int64_t count = 1;  // the caller is there even where the pool cannot be
  cutaway::guarded([&] {
    count = Pool::get().num_threads();
    return CW_OK;
  });
  return count;
}

cw_program* cw_program_new(void) { return new (std::nothrow) cw_program; }
void cw_program_free(cw_program* program) { delete program; }

int64_t cw_program_add(cw_program* program, int64_t operation, const void* arguments,
                       int64_t size) {
  if (!program || !arguments || size <= 0 || size != cutaway::size_of(operation))
    return CW_BAD_ARGUMENT;
  Limits narrowed = program->limits;
  cw_status status = cutaway::check_operation(operation, arguments, narrowed);
  if (status != CW_OK) return status;
  return cutaway::guarded([&] {
    size_t offset = program->arguments.size();
    program->recorded.push_back({operation, offset});  // where this throws all is as before
    try {
      program->arguments.resize(offset + (static_cast<size_t>(size) + 15) / 16 * 16);
    } catch (...) {
      program->recorded.pop_back();
      throw;
    }
    memcpy(program->arguments.data() + offset, arguments, static_cast<size_t>(size));
    program->limits = narrowed;
    return CW_OK;
  });
}

int64_t cw_program_run(cw_program* program, const cw_step* step) {
  if (!program || !step) return CW_BAD_ARGUMENT;
  return run(program, step, 0, program->recorded.size(), nullptr);
}

int64_t cw_program_run_part(cw_program* program, const cw_step* step, int64_t first,
                            int64_t count) {
  if (!program || !step || first < 0 || count < 0) return CW_BAD_ARGUMENT;
  size_t total = program->recorded.size(), begin = static_cast<size_t>(first);
  if (begin > total || static_cast<size_t>(count) > total - begin) return CW_BAD_ARGUMENT;
  return run(program, step, begin, begin + static_cast<size_t>(count), nullptr);
}

int64_t cw_program_time(cw_program* program, const cw_step* step, int64_t* nanoseconds) {
  if (!program || !step || !nanoseconds) return CW_BAD_ARGUMENT;
  return run(program, step, 0, program->recorded.size(), nanoseconds);
}

int64_t cw_num_operations(void) { return operations_run.load(std::memory_order_relaxed); }

int64_t cw_run(int64_t operation, const void* arguments, int64_t size, const cw_step* step) {
  if (!arguments || !step || size <= 0 || size != cutaway::size_of(operation))
    return CW_BAD_ARGUMENT;
  Limits limits;
  cw_status status = cutaway::check_operation(operation, arguments, limits);
  if (status == CW_OK) status = cutaway::check_step(*step, limits);
  if (status != CW_OK) return status;
  const cutaway::Isa& isa = cutaway::isa_in_use();
  cutaway::ScratchOf scratch_of = isa.scratch[operation];
  Scratch scratch = scratch_of ? scratch_of(arguments, *step) : Scratch{};
  Call call{arguments, step, isa.run[operation]};
  return cutaway::guarded(
      [&] { return Pool::get().run(run_call, &call, scratch) ? CW_OK : CW_NO_MEMORY; });
}

}  // extern "C"
