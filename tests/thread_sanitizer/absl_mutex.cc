// Tells the thread sanitizer what absl::Mutex and absl::CondVar order.
//
// Debian's abseil is compiled without the sanitizer, so everything that its mutexes
// guard looks like a race to it. The functions below take the place of the library's in
// the whole program, gRPC included: each calls the real one and marks where the mutex
// was released and acquired. Linked into the tests of the tsan preset and nothing else.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/base/options.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

#define FORESHARD_TEXT(name) #name
#define FORESHARD_TEXT_OF(name) FORESHARD_TEXT(name)

namespace {

// The library's own function, as one of its object and `Arguments`, which is how the
// platform calls member functions. `name` is mangled as it follows the namespace absl.
template <typename Result, typename Object, typename... Arguments>
auto Real(const char* name) {
  const std::string space = FORESHARD_TEXT_OF(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  std::string symbol = "_ZN4absl" + std::to_string(space.size()) + space + name;
  if (name[0] == 'K') {  // a const member: the K comes before the namespaces
    symbol = "_ZNK4absl" + std::to_string(space.size()) + space + (name + 1);
  }
  void* real = dlsym(RTLD_NEXT, symbol.c_str());
  if (real == nullptr) {
    std::fprintf(stderr, "no %s: another abseil than tests/thread_sanitizer was made for\n",
                 symbol.c_str());
    std::abort();
  }
  return reinterpret_cast<Result (*)(Object, Arguments...)>(real);
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static const auto real = Real<void, Mutex*>("5Mutex4LockEv");
  real(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static const auto real = Real<void, Mutex*>("5Mutex6UnlockEv");
  __tsan_release(this);
  real(this);
}

bool Mutex::TryLock() {
  static const auto real = Real<bool, Mutex*>("5Mutex7TryLockEv");
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  static const auto real = Real<void, Mutex*>("5Mutex10ReaderLockEv");
  real(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static const auto real = Real<void, Mutex*>("5Mutex12ReaderUnlockEv");
  __tsan_release(this);
  real(this);
}

void Mutex::Await(const Condition& condition) {
  static const auto real =
      Real<void, Mutex*, const Condition&>("5Mutex5AwaitERKNS0_9ConditionE");
  __tsan_release(this);
  real(this, condition);
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static const auto real = Real<bool, Mutex*, const Condition&, Duration>(
      "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  __tsan_release(this);
  const bool met = real(this, condition, timeout);
  __tsan_acquire(this);
  return met;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static const auto real = Real<bool, Mutex*, const Condition&, Time>(
      "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  __tsan_release(this);
  const bool met = real(this, condition, deadline);
  __tsan_acquire(this);
  return met;
}

void Mutex::LockWhen(const Condition& condition) {
  static const auto real =
      Real<void, Mutex*, const Condition&>("5Mutex8LockWhenERKNS0_9ConditionE");
  __tsan_release(this);  // of the condition, which the thread that unlocks looks at
  real(this, condition);
  __tsan_acquire(this);
}

// Whoever unlocks evaluates the conditions of those who wait, after its release was
// marked but before the mutex is free: these reads are guarded, though it can't be seen.
bool Condition::Eval() const {
  static const auto real = Real<bool, const Condition*>("K9Condition4EvalEv");
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  const bool met = real(this);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  return met;
}

void CondVar::Wait(Mutex* mutex) {
  static const auto real = Real<void, CondVar*, Mutex*>("7CondVar4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  real(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static const auto real = Real<bool, CondVar*, Mutex*, Duration>(
      "7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  __tsan_release(mutex);
  const bool expired = real(this, mutex, timeout);
  __tsan_acquire(mutex);
  return expired;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const auto real = Real<bool, CondVar*, Mutex*, Time>(
      "7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  __tsan_release(mutex);
  const bool expired = real(this, mutex, deadline);
  __tsan_acquire(mutex);
  return expired;
}

ABSL_NAMESPACE_END
}  // namespace absl
