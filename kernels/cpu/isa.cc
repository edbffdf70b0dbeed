#include "kernels/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <cassert>

namespace foreshard::kernels {
namespace {

#if defined(__x86_64__)
// clang's __builtin_cpu_supports does not know it.
bool HasF16c() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

Isa Detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !HasF16c()) return Isa::kBaseline;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx2;
  }
  return Isa::kAvx512;
#else
  return Isa::kBaseline;
#endif
}

std::atomic<Isa>& Active() {
  static std::atomic<Isa> active{BestIsa()};
  return active;
}

}  // namespace

Isa BestIsa() {
  static const Isa best = Detect();
  return best;
}

Isa ActiveIsa() { return Active().load(std::memory_order_relaxed); }

ScopedIsa::ScopedIsa(Isa isa) : previous_(ActiveIsa()) {
  assert(isa <= BestIsa());
  Active().store(isa, std::memory_order_relaxed);
}

ScopedIsa::~ScopedIsa() { Active().store(previous_, std::memory_order_relaxed); }

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kAvx512: return "avx512";
    case Isa::kAvx2: return "avx2";
    case Isa::kBaseline: break;
  }
  return "baseline";
}

}  // namespace foreshard::kernels
