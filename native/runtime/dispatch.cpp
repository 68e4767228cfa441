#include "dispatch.h"

#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <atomic>

namespace cutaway {

// Weak: a build with sanitizers has those alone that it is asked for.
#if defined(__x86_64__)
extern const Isa isa_avx512_vnni __attribute__((weak));
extern const Isa isa_avx512 __attribute__((weak));
extern const Isa isa_avx2 __attribute__((weak));
#elif defined(__aarch64__)
extern const Isa isa_neon __attribute__((weak));
#endif
extern const Isa isa_portable __attribute__((weak));

namespace {

struct Available {
  const Isa* isas[4] = {};
  int count = 0;
  char names[64] = {};  // separated by spaces

  void add(const Isa* isa) {
    if (!isa) return;
    if (count) strcat(names, " ");
    strcat(names, isa->name);
    isas[count++] = isa;
  }
  const Isa* const* begin() const { return isas; }
  const Isa* const* end() const { return isas + count; }
};

// Those of this build that this CPU has, best first. The compiler's tests ask the operating system
// too, whether it keeps the wide registers.
const Available& available() {
  static const Available found = [] {
    Available list;
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
    bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
    if (has_avx512 && __builtin_cpu_supports("avx512vnni")) list.add(&isa_avx512_vnni);
    if (has_avx512) list.add(&isa_avx512);
    if (has_avx2) list.add(&isa_avx2);
#elif defined(__aarch64__) && defined(__linux__)
    if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) list.add(&isa_neon);
#elif defined(__aarch64__)
    list.add(&isa_neon);
#endif
    list.add(&isa_portable);
    return list;
  }();
  return found;
}

std::atomic<const Isa*> chosen{nullptr};

}  // namespace

const Isa& isa_in_use() {
  const Isa* isa = chosen.load(std::memory_order_relaxed);
  return isa ? *isa : *available().isas[0];
}

}  // namespace cutaway

extern "C" {

const char* cw_isas(void) { return cutaway::available().names; }

const char* cw_isa(void) { return cutaway::isa_in_use().name; }

int64_t cw_use_isa(const char* name) {
  if (!name) return CW_BAD_ARGUMENT;
  for (const cutaway::Isa* isa : cutaway::available()) {
    if (strcmp(isa->name, name) != 0) continue;
    cutaway::chosen.store(isa, std::memory_order_relaxed);
    return CW_OK;
  }
  return CW_UNKNOWN_ISA;
}

}  // extern "C"
