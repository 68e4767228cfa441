#include "../simd/avx512.h"

#include "../kernels/all.h"

namespace cutaway {
extern const Isa isa_avx512;
constexpr Isa isa_avx512 = table("avx512");
}  // namespace cutaway
