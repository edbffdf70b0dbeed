// Which worker holds which slot on this server, and since when it is silent.
//
//   Membership members(job.training().max_workers(), lease_nanoseconds);
//   RETURN_IF_ERROR(members.Join(slot, incarnation, name, device, now));
//   RETURN_IF_ERROR(members.Touch(slot, incarnation, now));     // each message
//   for (const Membership::Member& lost : members.ExpireSilent(now)) ...
//
// Times are monotonic nanoseconds, given by the caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace foreshard {

// Thread-safe; Touch takes no lock unless an expired worker returns.
class Membership {
 public:
  enum class State : uint8_t { kFree, kTraining, kLeft, kExpired };

  struct Member {
    uint32_t worker = 0;
    State state = State::kFree;
    uint64_t incarnation = 0;
    std::string name;
    std::string device;
    int64_t last_seen = 0;
  };

  Membership(uint32_t slots, int64_t lease_nanoseconds);

  // This start of a worker takes the slot; an older one is fenced. ABORTED: a newer
  // one has it. INVALID_ARGUMENT: no such slot, or incarnation 0. Joining again
  // changes nothing but fills an empty name or device.
  absl::Status Join(uint32_t worker, uint64_t incarnation, const std::string& name,
                    const std::string& device, int64_t now);

  // After a restart, before there are callers: what was known of a slot. `training`: a lease
  // begins; else the worker counts as expired, and may come back.
  void Restore(uint32_t worker, uint64_t incarnation, bool training, int64_t now);

  // Notes a message; an expired worker is training again. ABORTED: fenced;
  // FAILED_PRECONDITION: it has not joined, or left.
  absl::Status Touch(uint32_t worker, uint64_t incarnation, int64_t now);

  // The worker goes politely; errors as Touch, leaving twice is none. True where
  // it was there until now.
  absl::StatusOr<bool> Leave(uint32_t worker, uint64_t incarnation, int64_t now);

  // Training workers not seen for longer than the lease become expired; returns
  // them as they were.
  std::vector<Member> ExpireSilent(int64_t now);

  // The lowest slot that was never taken or was left, else the lowest expired one.
  // Of those below `end`.
  std::optional<uint32_t> FreeSlot(uint32_t end = ~uint32_t{0}) const;

  uint32_t slots() const { return static_cast<uint32_t>(slots_.size()); }
  uint64_t incarnation(uint32_t worker) const { return slots_[worker]->incarnation.load(); }
  // All slots that were ever taken.
  std::vector<Member> Members() const;
  // One slot, below slots().
  Member MemberAt(uint32_t worker) const;
  uint32_t Count(State state) const;

 private:
  struct Slot {
    std::atomic<State> state{State::kFree};
    std::atomic<uint64_t> incarnation{0};
    std::atomic<int64_t> last_seen{0};
    std::string name;    // guarded by mutex_
    std::string device;  // guarded by mutex_
  };
  Member Locked(uint32_t worker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckKnown(uint32_t worker, uint64_t incarnation) const;

  const int64_t lease_nanoseconds_;
  mutable absl::Mutex mutex_;  // for every change of state
  std::vector<std::unique_ptr<Slot>> slots_;
};

// "training", "left", "expired", "free".
const char* ToString(Membership::State state);

}  // namespace foreshard
