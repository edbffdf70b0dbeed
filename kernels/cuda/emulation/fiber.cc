#include "kernels/cuda/emulation/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/emulation/sanitizers.h"

#if !defined(FORESHARD_FIBER_UCONTEXT)
// Keeps what a function must (System V ABI: rbx, rbp, r12 to r15) on the stack that is left,
// and takes it from the one that is entered.
asm(R"(
  .text
  .globl foreshard_switch_stack
  .type foreshard_switch_stack, @function
foreshard_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size foreshard_switch_stack, .-foreshard_switch_stack
)");
extern "C" void foreshard_switch_stack(void** left, void* entered);
#endif

namespace foreshard::kernels::cuda::emulation {
namespace {

// Of the switch under way, for the fiber that is entered.
thread_local Fiber* left_fiber = nullptr;
thread_local Fiber* entered_fiber = nullptr;

}  // namespace

Fiber::Fiber() {
#if FORESHARD_THREAD_SANITIZER
  sanitizer_fiber_ = __tsan_get_current_fiber();
#endif
}

Fiber::Fiber(size_t stack_bytes) : stack_bytes_(stack_bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  mapping_bytes_ = stack_bytes + page;
  mapping_ = mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED || mprotect(mapping_, page, PROT_NONE) != 0) {
    std::fprintf(stderr, "no memory for the stack of an emulated thread (%zu bytes)\n",
                 stack_bytes);
    std::abort();
  }
  stack_ = static_cast<char*>(mapping_) + page;
#if FORESHARD_THREAD_SANITIZER
  sanitizer_fiber_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
  if (mapping_ == nullptr) return;
#if FORESHARD_THREAD_SANITIZER
  __tsan_destroy_fiber(sanitizer_fiber_);
#endif
#if FORESHARD_ADDRESS_SANITIZER
  __asan_unpoison_memory_region(stack_, stack_bytes_);
#endif
  munmap(mapping_, mapping_bytes_);
}

void Fiber::Start(void (*entry)(void*), void* argument) {
  entry_ = entry;
  argument_ = argument;
  sanitizer_stack_ = nullptr;
#if FORESHARD_ADDRESS_SANITIZER
  // Frames that were left without their end are still marked.
  __asan_unpoison_memory_region(stack_, stack_bytes_);
#endif
#if !defined(FORESHARD_FIBER_UCONTEXT)
  auto* top = reinterpret_cast<uint64_t*>(static_cast<char*>(stack_) + stack_bytes_);
  // As foreshard_switch_stack leaves a stack: six registers, then where to go on. A function
  // begins with the stack pointer 8 below a multiple of 16; above it a return address that is
  // none, so that nothing unwinds further.
  *--top = 0;
  *--top = reinterpret_cast<uint64_t>(&Fiber::Enter);
  for (int i = 0; i < 6; ++i) *--top = 0;
  stack_pointer_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = stack_bytes_;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::Enter, 0);
#endif
}

void Fiber::Enter() {
  Fiber* const self = entered_fiber;
#if FORESHARD_ADDRESS_SANITIZER
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (left_fiber->stack_ == nullptr) {
    left_fiber->stack_ = const_cast<void*>(bottom);
    left_fiber->stack_bytes_ = bytes;
  }
#endif
  self->entry_(self->argument_);
  std::fprintf(stderr, "an emulated thread's function returned to nowhere\n");
  std::abort();
}

void Fiber::Switch(Fiber& from, Fiber& to, bool ends) {
  left_fiber = &from;
  entered_fiber = &to;
#if FORESHARD_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(ends ? nullptr : &from.sanitizer_stack_, to.stack_,
                                 to.stack_bytes_);
#endif
#if FORESHARD_THREAD_SANITIZER
  __tsan_switch_to_fiber(to.sanitizer_fiber_, 0);
#endif
#if !defined(FORESHARD_FIBER_UCONTEXT)
  foreshard_switch_stack(&from.stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&from.context_, &to.context_);
#endif
#if FORESHARD_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(from.sanitizer_stack_, nullptr, nullptr);
#endif
}

}  // namespace foreshard::kernels::cuda::emulation
