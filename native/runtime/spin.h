// A short wait on the core.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cutaway {

inline void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // some cycles; yield takes none on most
#endif
}

}  // namespace cutaway
