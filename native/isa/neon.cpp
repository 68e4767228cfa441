#include "../simd/neon.h"

#include "../kernels/all.h"

namespace cutaway {
extern const Isa isa_neon;
constexpr Isa isa_neon = table("neon");
}  // namespace cutaway
