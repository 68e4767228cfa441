// The largest of some numbers, in the order in which torch.topk has them.
#pragma once

#include <stdint.h>

namespace cutaway {

struct Scored {
  float score;
  int64_t id;
};

// Brings the count largest of total to the front, the largest first; NaN is larger than all.
void bring_largest(Scored* scored, int64_t total, int64_t count);

}  // namespace cutaway
