// A function with a stack of its own that gives way to others by itself: what a thread of the
// emulated GPU is. Works under the address and the thread sanitizer, which are told of every
// switch.
//
//   Fiber here;                       // what the calling thread runs on
//   Fiber other(Fiber::kStackBytes);
//   other.Start(&Run, &argument);     // Run ends with Fiber::Switch(other, here, true)
//   Fiber::Switch(here, other);       // returns when `other` switches back
//
// Fibers of one thread only switch among each other.
#pragma once

#include <cstddef>

// On x86-64 a switch is a dozen instructions of ours; elsewhere ucontext's, which asks the kernel
// for the signal mask each time. FORESHARD_FIBER_UCONTEXT: ucontext's in any case.
#if !defined(__x86_64__) && !defined(FORESHARD_FIBER_UCONTEXT)
#define FORESHARD_FIBER_UCONTEXT
#endif
#if defined(FORESHARD_FIBER_UCONTEXT)
#include <ucontext.h>
#endif

namespace foreshard::kernels::cuda::emulation {

class Fiber {
 public:
  // Sanitizers make frames several times larger.
  static constexpr size_t kStackBytes = 256 << 10;

  // The calling thread's own.
  Fiber();
  // With a stack of its own; below it a page that ends the program when it overflows.
  explicit Fiber(size_t stack_bytes);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next switch to this fiber calls entry(argument), which must not return. Whatever it
  // ran before is forgotten.
  void Start(void (*entry)(void*), void* argument);

  // Goes from the one that runs to another. `ends`: `from` is not gone back to before it is
  // started again.
  static void Switch(Fiber& from, Fiber& to, bool ends = false);

 private:
  static void Enter();

  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  // Null for the thread's own, until the first switch away from it tells a sanitizer.
  void* stack_ = nullptr;
  size_t stack_bytes_ = 0;
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
#if defined(FORESHARD_FIBER_UCONTEXT)
  ucontext_t context_;
#else
  void* stack_pointer_ = nullptr;
#endif
  void* sanitizer_stack_ = nullptr;  // address sanitizer: what it keeps of this fiber
  void* sanitizer_fiber_ = nullptr;  // thread sanitizer
};

}  // namespace foreshard::kernels::cuda::emulation
