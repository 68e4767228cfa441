// How fast this machine reads memory: the floor under every step that reads all weights.

#include <algorithm>
#include <chrono>
#include <vector>

#include "dispatch.h"
#include "guard.h"
#include "pool.h"

namespace {

struct Reading {
  const uint8_t* buffer;
  int64_t num_bytes;
  uint64_t sums[cutaway::kMostThreads];
};

constexpr int64_t kBlock = 4096;

void read_parts(const void* context, cutaway::Worker& worker) {
  Reading& r = *static_cast<Reading*>(const_cast<void*>(context));
  cutaway::Range part;
  while (worker.take(r.num_bytes / kBlock, &part))
    r.sums[worker.id] ^= cutaway::isa_in_use().sum_words(r.buffer + part.begin * kBlock,
                                                         (part.end - part.begin) * kBlock);
}

}  // namespace

extern "C" double cw_read_bandwidth(const uint8_t* buffer, int64_t num_bytes, int64_t num_rounds) {
  if (!buffer || num_bytes < kBlock || num_rounds < 1) return 0.0;
  double median = 0.0;
  cutaway::guarded([&] {
    Reading reading{buffer, num_bytes, {}};
    std::vector<double> seconds(static_cast<size_t>(num_rounds));
    for (double& each : seconds) {
      auto before = std::chrono::steady_clock::now();
      if (!cutaway::Pool::get().run(read_parts, &reading, {})) return CW_NO_MEMORY;
      each = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
    }
    std::nth_element(seconds.begin(), seconds.begin() + num_rounds / 2, seconds.end());
    median = seconds[static_cast<size_t>(num_rounds / 2)];
    return CW_OK;
  });
  return median > 0.0 ? static_cast<double>(num_bytes) / median : 0.0;
}
