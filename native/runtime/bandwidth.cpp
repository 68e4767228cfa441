// How fast this machine reads memory: the floor under every step that reads all weights.

#include <algorithm>
#include <chrono>
#include <vector>

#include "dispatch.h"
#include "pool.h"

namespace {

struct Reading {
  const uint8_t* buffer;
  int64_t num_bytes;
  uint64_t sums[cutaway::kMostThreads];
};

void read_part(const void* context, const cutaway::Worker& worker) {
  Reading& r = *static_cast<Reading*>(const_cast<void*>(context));
  int64_t begin = r.num_bytes / 4096 * worker.id / worker.count * 4096;
  int64_t end = r.num_bytes / 4096 * (worker.id + 1) / worker.count * 4096;
  r.sums[worker.id] = cutaway::isa_in_use().sum_words(r.buffer + begin, end - begin);
}

}  // namespace

extern "C" double cw_read_bandwidth(const uint8_t* buffer, int64_t num_bytes, int64_t num_rounds) {
  if (!buffer || num_bytes < 4096 || num_rounds < 1) return 0.0;
  Reading reading{buffer, num_bytes, {}};
  std::vector<double> seconds;
  for (int64_t i = 0; i < num_rounds; i++) {
    auto before = std::chrono::steady_clock::now();
    if (!cutaway::Pool::get().run(read_part, &reading, {})) return 0.0;
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + num_rounds / 2, seconds.end());
  return static_cast<double>(num_bytes) / seconds[static_cast<size_t>(num_rounds / 2)];
}
