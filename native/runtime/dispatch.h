// The instruction sets that are compiled in, and the one in use.
#pragma once

#include "operations.h"

namespace cutaway {

const Isa& isa_in_use();

}  // namespace cutaway
