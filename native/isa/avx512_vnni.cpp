#include "../simd/avx512.h"

#include "../kernels/all.h"

namespace cutaway {
extern const Isa isa_avx512_vnni;
constexpr Isa isa_avx512_vnni = table("avx512_vnni");
}  // namespace cutaway
