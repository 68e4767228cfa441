// Rows in sixteen lanes at a time: masks cost as much as what is computed, so the last ones alone
// have them.
#pragma once

#include "../share.h"

namespace {

struct AllLanes {
  F32 get(const float* p) const { return load(p); }
  void put(float* p, F32 x) const { store(p, x); }
};

struct FirstLanes {
  int count;
  F32 get(const float* p) const { return load_first(p, count); }
  void put(float* p, F32 x) const { store_first(p, x, count); }
};

// What a loop over numbers calls is compiled into it, though others call it too: in a file as large
// as that of an instruction set the compiler leaves it outside, which took three times as long.
#define CW_WHOLE __attribute__((flatten))

template <class Body>
inline void each_lanes(int64_t width, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) body(i, AllLanes{});
  if (i < width) body(i, FirstLanes{static_cast<int>(width - i)});
}

}  // namespace
