#include "../simd/portable.h"

#include "../kernels/all.h"

namespace cutaway {
extern const Isa isa_portable;
constexpr Isa isa_portable = table("portable");
}  // namespace cutaway
