// Moments by a clock that nobody sets, for how long something has taken and when something is due: after a
// step of the wall clock (a clock that was put right, a machine that was paused) absl::Now() says nothing of
// either. A type of its own, so that the two are not mixed.
//
//   const SteadyTime start = SteadyTime::Now();
//   ...
//   if (SteadyTime::Now() - start > absl::Seconds(5)) ...
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace foreshard {

// Without a value it is InfinitePast. Arithmetic as absl::Time's.
class SteadyTime {
 public:
  SteadyTime() : since_(-absl::InfiniteDuration()) {}

  static SteadyTime Now() {
    return SteadyTime(absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()));
  }
  static SteadyTime InfiniteFuture() { return SteadyTime(absl::InfiniteDuration()); }
  static SteadyTime InfinitePast() { return SteadyTime(-absl::InfiniteDuration()); }

  friend SteadyTime operator+(SteadyTime time, absl::Duration by) { return SteadyTime(time.since_ + by); }
  friend SteadyTime operator-(SteadyTime time, absl::Duration by) { return SteadyTime(time.since_ - by); }
  friend absl::Duration operator-(SteadyTime to, SteadyTime from) { return to.since_ - from.since_; }
  SteadyTime& operator+=(absl::Duration by) { return *this = *this + by; }
  friend bool operator==(SteadyTime a, SteadyTime b) { return a.since_ == b.since_; }
  friend bool operator<(SteadyTime a, SteadyTime b) { return a.since_ < b.since_; }
  friend bool operator>(SteadyTime a, SteadyTime b) { return b < a; }
  friend bool operator<=(SteadyTime a, SteadyTime b) { return !(b < a); }
  friend bool operator>=(SteadyTime a, SteadyTime b) { return !(a < b); }

 private:
  explicit SteadyTime(absl::Duration since) : since_(since) {}

  absl::Duration since_;  // since an epoch of the system's
};

}  // namespace foreshard
