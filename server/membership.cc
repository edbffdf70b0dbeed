#include "server/membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace foreshard {

Membership::Membership(uint32_t slots, int64_t lease_nanoseconds)
    : lease_nanoseconds_(lease_nanoseconds) {
  for (uint32_t i = 0; i < slots; ++i) slots_.push_back(std::make_unique<Slot>());
}

absl::Status Membership::CheckKnown(uint32_t worker, uint64_t incarnation) const {
  if (worker >= slots_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " is beyond the job's ",
                                                   slots_.size(),
                                                   " slots (training.max_workers)"));
  }
  const Slot& slot = *slots_[worker];
  const uint64_t known = slot.incarnation.load(std::memory_order_acquire);
  if (incarnation < known) {
    return absl::AbortedError(absl::StrCat("worker ", worker, ": incarnation ", incarnation,
                                           " is fenced by the newer ", known,
                                           "; this process must end"));
  }
  if (incarnation > known || incarnation == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " with incarnation ", incarnation,
                     " has not joined this server: say Hello first"));
  }
  return absl::OkStatus();
}

absl::Status Membership::Join(uint32_t worker, uint64_t incarnation, const std::string& name,
                              const std::string& device, int64_t now) {
  if (worker >= slots_.size()) return CheckKnown(worker, incarnation);
  if (incarnation == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", worker, " has no incarnation: register with the lead first"));
  }
  absl::MutexLock lock(&mutex_);
  Slot& slot = *slots_[worker];
  if (incarnation < slot.incarnation.load()) return CheckKnown(worker, incarnation);
  if (incarnation > slot.incarnation.load()) {
    slot.name.clear();
    slot.device.clear();
  }
  if (!name.empty()) slot.name = name;
  if (!device.empty()) slot.device = device;
  slot.last_seen.store(now);
  slot.incarnation.store(incarnation, std::memory_order_release);
  slot.state.store(State::kTraining);
  return absl::OkStatus();
}

void Membership::Restore(uint32_t worker, uint64_t incarnation, bool training, int64_t now) {
  absl::MutexLock lock(&mutex_);
  Slot& slot = *slots_[worker];
  slot.last_seen.store(now);
  slot.incarnation.store(incarnation, std::memory_order_release);
  slot.state.store(training ? State::kTraining : State::kExpired);
}

absl::Status Membership::Touch(uint32_t worker, uint64_t incarnation, int64_t now) {
  if (absl::Status status = CheckKnown(worker, incarnation); !status.ok()) return status;
  Slot& slot = *slots_[worker];
  slot.last_seen.store(now, std::memory_order_relaxed);
  if (slot.state.load(std::memory_order_acquire) == State::kTraining) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = CheckKnown(worker, incarnation); !status.ok()) return status;
  if (slot.state.load() == State::kLeft) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", worker, " has left: register again to come back"));
  }
  if (slot.state.load() == State::kExpired) {
    slot.state.store(State::kTraining);
    LOG(INFO) << "worker " << worker << " (" << slot.name << ") is back";
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Membership::Leave(uint32_t worker, uint64_t incarnation, int64_t now) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = CheckKnown(worker, incarnation); !status.ok()) return status;
  Slot& slot = *slots_[worker];
  slot.last_seen.store(now);
  return slot.state.exchange(State::kLeft) != State::kLeft;
}

std::vector<Membership::Member> Membership::ExpireSilent(int64_t now) {
  std::vector<Member> expired;
  absl::MutexLock lock(&mutex_);
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = *slots_[i];
    const int64_t last_seen = slot.last_seen.load(std::memory_order_relaxed);
    if (slot.state.load() != State::kTraining || now - last_seen <= lease_nanoseconds_) continue;
    slot.state.store(State::kExpired);
    expired.push_back({i, State::kTraining, slot.incarnation.load(), slot.name, slot.device,
                       last_seen});
  }
  return expired;
}

std::optional<uint32_t> Membership::FreeSlot(uint32_t end) const {
  absl::MutexLock lock(&mutex_);
  std::optional<uint32_t> expired;
  for (uint32_t i = 0; i < std::min<size_t>(end, slots_.size()); ++i) {
    const State state = slots_[i]->state.load();
    if (state == State::kFree || state == State::kLeft) return i;
    if (state == State::kExpired && !expired.has_value()) expired = i;
  }
  return expired;
}

std::vector<Membership::Member> Membership::Members() const {
  std::vector<Member> members;
  absl::MutexLock lock(&mutex_);
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i]->state.load() == State::kFree) continue;
    members.push_back(Locked(i));
  }
  return members;
}

Membership::Member Membership::MemberAt(uint32_t worker) const {
  absl::MutexLock lock(&mutex_);
  return Locked(worker);
}

Membership::Member Membership::Locked(uint32_t worker) const {
  const Slot& slot = *slots_[worker];
  return {worker, slot.state.load(), slot.incarnation.load(), slot.name, slot.device,
          slot.last_seen.load()};
}

uint32_t Membership::Count(State state) const {
  uint32_t count = 0;
  for (const auto& slot : slots_) count += slot->state.load(std::memory_order_relaxed) == state;
  return count;
}

const char* ToString(Membership::State state) {
  switch (state) {
    case Membership::State::kTraining:
      return "training";
    case Membership::State::kLeft:
      return "left";
    case Membership::State::kExpired:
      return "expired";
    case Membership::State::kFree:
      break;
  }
  return "free";
}

}  // namespace foreshard
