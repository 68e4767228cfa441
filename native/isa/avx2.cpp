#include "../simd/avx2.h"

#include "../kernels/all.h"

namespace cutaway {
extern const Isa isa_avx2;
constexpr Isa isa_avx2 = table("avx2");
}  // namespace cutaway
