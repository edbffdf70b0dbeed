// Tells thread sanitizer what abseil's locks order. Debian's abseil is not built for
// it, so that without this every absl::Mutex looks like no lock at all. Part of the
// tests' programs in thread sanitizer builds only.
//
// The linker takes these definitions before the shared library's, for our code and
// for gRPC's; each one calls the library's own and says what has happened. Conditions
// of waiting threads are evaluated by the thread that unlocks, inside the library:
// its reads are not looked at there.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/base/options.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

#define FORESHARD_TEXT(x) #x
#define FORESHARD_EXPAND(x) FORESHARD_TEXT(x)

namespace {

constexpr char kNamespace[] = FORESHARD_EXPAND(ABSL_OPTION_INLINE_NAMESPACE_NAME);

// The library's function; `name` is its mangled name after the namespaces.
template <typename Function>
Function Library(const std::string& name) {
  const std::string symbol =
      "_ZN4absl" + std::to_string(sizeof kNamespace - 1) + kNamespace + name;
  void* found = dlsym(RTLD_NEXT, symbol.c_str());
  if (found == nullptr) {
    std::fprintf(stderr, "no %s in the shared libraries\n", symbol.c_str());
    std::abort();
  }
  return reinterpret_cast<Function>(found);
}

// Between these the thread may hold the lock or not, and evaluate conditions.
class InsideLibrary {
 public:
  explicit InsideLibrary(void* mutex) : mutex_(mutex) {
    __tsan_release(mutex_);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  }
  ~InsideLibrary() {
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    if (!unlocked_) __tsan_acquire(mutex_);
  }
  void unlocked() { unlocked_ = true; }

 private:
  void* const mutex_;
  bool unlocked_ = false;
};

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static const auto library = Library<void (*)(Mutex*)>("5Mutex4LockEv");
  library(this);
  __tsan_acquire(this);
}

void Mutex::ReaderLock() {
  static const auto library = Library<void (*)(Mutex*)>("5Mutex10ReaderLockEv");
  library(this);
  __tsan_acquire(this);
}

bool Mutex::TryLock() {
  static const auto library = Library<bool (*)(Mutex*)>("5Mutex7TryLockEv");
  const bool locked = library(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::Unlock() {
  static const auto library = Library<void (*)(Mutex*)>("5Mutex6UnlockEv");
  InsideLibrary inside(this);
  inside.unlocked();
  library(this);
}

void Mutex::ReaderUnlock() {
  static const auto library = Library<void (*)(Mutex*)>("5Mutex12ReaderUnlockEv");
  InsideLibrary inside(this);
  inside.unlocked();
  library(this);
}

void Mutex::Await(const Condition& condition) {
  static const auto library =
      Library<void (*)(Mutex*, const Condition&)>("5Mutex5AwaitERKNS0_9ConditionE");
  const InsideLibrary inside(this);
  library(this, condition);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static const auto library = Library<bool (*)(Mutex*, const Condition&, Duration)>(
      "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  const InsideLibrary inside(this);
  return library(this, condition, timeout);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static const auto library = Library<bool (*)(Mutex*, const Condition&, Time)>(
      "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  const InsideLibrary inside(this);
  return library(this, condition, deadline);
}

void Mutex::LockWhen(const Condition& condition) {
  static const auto library =
      Library<void (*)(Mutex*, const Condition&)>("5Mutex8LockWhenERKNS0_9ConditionE");
  const InsideLibrary inside(this);
  library(this, condition);
}

void CondVar::Wait(Mutex* mutex) {
  static const auto library =
      Library<void (*)(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  const InsideLibrary inside(mutex);
  library(this, mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static const auto library = Library<bool (*)(CondVar*, Mutex*, Duration)>(
      "7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  const InsideLibrary inside(mutex);
  return library(this, mutex, timeout);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const auto library = Library<bool (*)(CondVar*, Mutex*, Time)>(
      "7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  const InsideLibrary inside(mutex);
  return library(this, mutex, deadline);
}

ABSL_NAMESPACE_END
}  // namespace absl
