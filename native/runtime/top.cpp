#include "top.h"

#include <math.h>

#include <algorithm>

namespace cutaway {

// Where numbers are equal the library's sorts decide, so they are called as torch.topk calls them
// (ATen/native/TopKImpl.h): then a router chooses the same experts here and there. Each takes a
// number of its own as it comes, so what is chosen hangs on the row alone.
void bring_largest(Scored* scored, int64_t total, int64_t count) {
  auto is_before = [](const Scored& a, const Scored& b) {
    return (isnan(a.score) && !isnan(b.score)) || a.score > b.score;
  };
  Scored* end = scored + total;
  if (count * 64 <= total) {
    std::partial_sort(scored, scored + count, end, is_before);
    return;
  }
  std::nth_element(scored, scored + count - 1, end, is_before);
  std::sort(scored, scored + count - 1, is_before);
}

}  // namespace cutaway
