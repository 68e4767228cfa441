// A number that goes up, and threads that sleep until it does.
#pragma once

#include <stdint.h>

#include <atomic>

#if defined(__linux__) && !defined(CUTAWAY_NO_FUTEX)
#define CUTAWAY_HAS_FUTEX
#else
#include <condition_variable>
#include <mutex>
#endif

namespace cutaway {

class Signal {
 public:
  uint64_t count() const { return count_.load(std::memory_order_acquire); }

  // One more; what was written before is seen by who sees the count. Wakes all.
  void ring();

  // The same by one thread at a time and without a fence, which would cost hundreds of cycles:
  // who is just going to sleep may miss it, so for those who doze briefly.
  void ring_lightly();

  // Sleeps while the count is the one seen; briefly: a millisecond at most. May return early.
  void doze(uint64_t seen);
  void doze_briefly(uint64_t seen);

 private:
  void wake();

  alignas(64) std::atomic<uint64_t> count_{0};
  alignas(64) std::atomic<bool> has_sleepers_{false};
#if !defined(CUTAWAY_HAS_FUTEX)
  std::mutex mutex_;
  std::condition_variable woken_;
#endif
};

}  // namespace cutaway
