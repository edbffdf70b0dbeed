// Which instruction set the CPU kernels use, chosen once at run time. Every
// kernel gives the same bits on each of them; tests force each in turn.
//
//   FORESHARD_ISA_INLINE void AxpyBody(float a, const float* x, float* y, uint64_t n) { ... }
//   FORESHARD_ISA_VARIANTS(void, Axpy, (float a, const float* x, float* y, uint64_t n),
//                          (a, x, y, n))
//   Axpy(2.0f, x, y, n);   // the body, compiled for the machine at hand
#pragma once

#include <cstdint>

namespace foreshard::kernels {

// Each one includes those before it. kBaseline is what every machine of the
// architecture has (SSE2 on x86-64).
enum class Isa : uint8_t { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };

// The best one this machine has (kAvx2 asks for F16C too; kAvx512 for F, BW, DQ
// and VL).
Isa BestIsa();

// The one in use: BestIsa(), unless a test forced another. Safe from any thread.
Isa ActiveIsa();

// Uses `isa` in the whole process while it lives. For tests and benchmarks; `isa`
// must not be beyond BestIsa().
class ScopedIsa {
 public:
  explicit ScopedIsa(Isa isa);
  ~ScopedIsa();
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;

 private:
  Isa previous_;
};

const char* IsaName(Isa isa);

}  // namespace foreshard::kernels

// A body that is compiled once for each instruction set it is called from.
#define FORESHARD_ISA_INLINE [[gnu::always_inline]] static inline

#if defined(__x86_64__)
#define FORESHARD_TARGET_AVX2 __attribute__((target("avx2,f16c")))
#define FORESHARD_TARGET_AVX512 \
  __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")))

// Defines name(parameters) as nameBody(arguments), compiled for each instruction
// set, with the choice made at each call. (Not target_clones: its resolvers run
// before thread sanitizer is up, and a test cannot force a clone.)
#define FORESHARD_ISA_VARIANTS(result, name, parameters, arguments)                     \
  static result name##Baseline parameters { return name##Body arguments; }              \
  FORESHARD_TARGET_AVX2 static result name##Avx2 parameters { return name##Body arguments; } \
  FORESHARD_TARGET_AVX512 static result name##Avx512 parameters {                       \
    return name##Body arguments;                                                        \
  }                                                                                     \
  static result name parameters {                                                       \
    switch (::foreshard::kernels::ActiveIsa()) {                                        \
      case ::foreshard::kernels::Isa::kAvx512: return name##Avx512 arguments;           \
      case ::foreshard::kernels::Isa::kAvx2: return name##Avx2 arguments;               \
      case ::foreshard::kernels::Isa::kBaseline: break;                                 \
    }                                                                                   \
    return name##Baseline arguments;                                                    \
  }
#else
#define FORESHARD_ISA_VARIANTS(result, name, parameters, arguments) \
  static result name parameters { return name##Body arguments; }
#endif
