// Nothing is thrown across the C border: where memory is short, a status says so.
#pragma once

#include <new>

#include "../cutaway.h"

namespace cutaway {

template <class Body>
int64_t guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return CW_NO_MEMORY;
  }
}

}  // namespace cutaway
