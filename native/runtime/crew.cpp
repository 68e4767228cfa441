#include "crew.h"

#include "spin.h"

namespace cutaway {

namespace {

constexpr int kPausesBeforeHelp = 50;    // a microsecond or two
constexpr int kPausesInside = 150;       // some five
constexpr int kPausesBeforeDoze = 5000;  // some hundred: another process has the core of one of us
constexpr int kCrowdedJobs = 16;         // for so many after such a wait the machine is held busy
constexpr int64_t kMostParts = 8;        // of a share, while threads lose their cores too
constexpr int64_t kUnitsOfPart = 64;     // a share of many units is cut without being asked to
constexpr int kPartBits = 16;  // of Seat::taken; the rest is the phase

}  // namespace

Crew::Crew(int count) : count_(count), seats_(new Seat[static_cast<size_t>(count)]) {}

uint64_t Crew::open() {
  first_phase_ = phase_.count();
  int crowded = crowded_jobs_.load(std::memory_order_relaxed);
  if (crowded > 0) crowded_jobs_.store(crowded - 1, std::memory_order_relaxed);
  least_parts_ = crowded > 0 ? kMostParts : 1;
  job_.store(++last_job_);
  return last_job_;
}

void Crew::close() {
  job_.store(0);
  for (int id = 1; id < count_; id++)
    for (int pauses = 0; true; pauses++) {
      uint64_t seen = left_.count();
      if (!seats_[static_cast<size_t>(id)].is_inside.load()) break;
      if (pauses < kPausesBeforeDoze)
        pause_briefly();
      else
        left_.doze(seen);
    }
}

uint64_t Crew::enter(int id, uint64_t seen) {
  seats_[static_cast<size_t>(id)].is_inside.store(true);
  uint64_t job = job_.load();
  if (job && job != seen) return job;
  leave(id);
  return 0;
}

void Crew::leave(int id) {
  seats_[static_cast<size_t>(id)].is_inside.store(false);
  if (!job_.load()) left_.ring();
}

Worker Crew::worker(int id, uint64_t job, char* local, char* shared) {
  return {id, count_, local, shared, this, job, first_phase_, id, 1, 0, {0, 0}, 0, 0};
}

bool Worker::take(int64_t total, Range* part, int64_t parts) {
  if (crew) return job && crew->take(*this, total, part, parts);
  phase ^= 1;  // alone: the whole, then its end
  *part = {0, total};
  return phase;
}

bool Crew::take(Worker& worker, int64_t total, Range* part, int64_t parts) {
  worker.parts = parts > least_parts_ ? parts : least_parts_;
  worker.unreported += worker.in_hand;
  worker.in_hand = 0;
  int64_t units = total > 0 ? total : 1;  // of nothing one thread takes an empty part
  if (find(worker, units, part)) {
    if (total <= 0) *part = {0, 0};
    return true;
  }
  if (!worker.job) return false;
  worker.phase++;
  worker.owner = worker.id;
  worker.piece = 0;
  return false;
}

// False when the phase is over, or the job.
bool Crew::find(Worker& worker, int64_t total, Range* part) {
  if (is_over(worker)) return false;
  if (claim(worker, total, part)) return true;
  report(worker, total);
  if (worker.owner == worker.id && !waits_in_vain(worker, kPausesBeforeHelp)) return false;
  if (claim_from_others(worker, total, part)) return true;
  if (waits_in_vain(worker, kPausesInside)) wait_outside(worker);
  return false;
}

// Tags of later phases are never taken for this one, so who comes late gets nothing.
bool Crew::claim(Worker& w, int64_t total, Range* part) {
  if (!w.piece) {
    w.share = {total * w.owner / count_, total * (w.owner + 1) / count_};
    int64_t size = w.share.end - w.share.begin, parts = size / kUnitsOfPart;
    if (parts > kMostParts) parts = kMostParts;
    if (parts < w.parts) parts = w.parts;
    w.piece = (size + parts - 1) / parts;
  }
  std::atomic<uint64_t>& taken = seats_[static_cast<size_t>(w.owner)].taken;
  uint64_t now = taken.load(std::memory_order_relaxed);
  int64_t begin;
  do {
    if (now >> kPartBits > w.phase) return false;
    uint64_t parts = now >> kPartBits == w.phase ? now & ((1 << kPartBits) - 1) : 0;
    begin = w.share.begin + static_cast<int64_t>(parts) * w.piece;
    if (begin >= w.share.end) return false;
    uint64_t next = w.phase << kPartBits | (parts + 1);
    if (taken.compare_exchange_weak(now, next, std::memory_order_acq_rel)) break;
  } while (true);
  int64_t end = begin + w.piece < w.share.end ? begin + w.piece : w.share.end;
  *part = {begin, end};
  w.in_hand = end - begin;
  return true;
}

bool Crew::claim_from_others(Worker& w, int64_t total, Range* part) {
  for (int i = 1; i < count_; i++) {
    w.owner = (w.owner + 1) % count_;
    w.piece = 0;
    if (claim(w, total, part)) return true;
  }
  return false;
}

void Crew::report(Worker& w, int64_t total) {
  if (!w.unreported) return;
  int64_t count = w.unreported;
  w.unreported = 0;
  if (num_done_.fetch_add(count) + count < total) return;
  num_done_.store(0, std::memory_order_relaxed);
  phase_.ring_lightly();
}

// A short wait stays in the job: to leave and to enter take a fence each.
bool Crew::waits_in_vain(const Worker& w, int most_pauses) {
  for (int pauses = 0; pauses < most_pauses; pauses++) {
    if (is_over(w)) return false;
    pause_briefly();
  }
  return !is_over(w);
}

// A long one is outside, so that the job's end need not wait for a thread that lost its core here.
void Crew::wait_outside(Worker& w) {
  if (w.id) leave(w.id);
  while (waits_in_vain(w, kPausesBeforeDoze)) {
    crowded_jobs_.store(kCrowdedJobs, std::memory_order_relaxed);
    phase_.doze_briefly(w.phase);
  }
  if (!w.id) return;
  uint64_t job = enter(w.id, 0);
  if (job == w.job) return;
  if (job) leave(w.id);
  w.job = 0;
}

}  // namespace cutaway
