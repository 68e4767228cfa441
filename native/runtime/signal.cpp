#include "signal.h"

#if defined(CUTAWAY_HAS_FUTEX)
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#else
#include <chrono>
#endif

namespace cutaway {

void Signal::ring() {
  count_.fetch_add(1);
  wake();
}

void Signal::ring_lightly() {
  count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  wake();
}

#if defined(CUTAWAY_HAS_FUTEX)

namespace {

// The kernel compares 32 bits: the low half, which lies first.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half lies first");

void futex(std::atomic<uint64_t>* word, int operation, uint32_t number, const timespec* most) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, number, most, nullptr, 0);
}

}  // namespace

// Who was woken and waits for a core is not woken again.
void Signal::wake() {
  if (has_sleepers_.load() && has_sleepers_.exchange(false))
    futex(&count_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr);
}

void Signal::doze(uint64_t seen) {
  has_sleepers_.store(true);
  futex(&count_, FUTEX_WAIT_PRIVATE, static_cast<uint32_t>(seen), nullptr);
}

void Signal::doze_briefly(uint64_t seen) {
  has_sleepers_.store(true);
  timespec most{0, 1000000};
  futex(&count_, FUTEX_WAIT_PRIVATE, static_cast<uint32_t>(seen), &most);
}

#else

void Signal::wake() {
  if (!has_sleepers_.load() || !has_sleepers_.exchange(false)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  woken_.notify_all();
}

void Signal::doze(uint64_t seen) {
  std::unique_lock<std::mutex> lock(mutex_);
  has_sleepers_.store(true);
  if (count_.load() == seen) woken_.wait(lock);
}

void Signal::doze_briefly(uint64_t seen) {
  std::unique_lock<std::mutex> lock(mutex_);
  has_sleepers_.store(true);
  if (count_.load() == seen) woken_.wait_for(lock, std::chrono::milliseconds(1));
}

#endif

}  // namespace cutaway
