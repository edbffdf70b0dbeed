#include "server/phase_control.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace foreshard {
namespace {

constexpr double kStable = 0.96;

}  // namespace

bool PhaseControl::Frozen(uint64_t round) const {
  if (announced_.has_value()) return *announced_ == Phase::kFrozen;
  return !options_.automatic && round >= options_.freeze_round;
}

std::optional<Phase> PhaseControl::Note(const RoundSums& sums, uint64_t completed_tickets) {
  if (announced_.has_value() && sums.round < announced_round_) return std::nullopt;
  if (Frozen(sums.round)) {
    const auto beyond = [&](double ratio) { return !(ratio <= options_.error_limit); };
    if (!beyond(sums.error_ratio) && !beyond(sums.server_error_ratio)) return std::nullopt;
    const bool servers = beyond(sums.server_error_ratio);
    reason_ = absl::StrFormat(
        "in round %d the error that compression has kept back at %s was %.3g times as large as the "
        "momentum; apmsqueeze.error_limit is %g",
        sums.round, servers ? "the servers" : "a worker",
        servers ? sums.server_error_ratio : sums.error_ratio, options_.error_limit);
    return Phase::kFull;
  }
  if (!options_.automatic) return std::nullopt;
  variance_sums_[sums.round] = sums.variance_sum;
  if (sums.round < options_.span_rounds) return std::nullopt;
  const uint64_t then = sums.round - options_.span_rounds;
  variance_sums_.erase(variance_sums_.begin(), variance_sums_.lower_bound(then));
  const auto before = variance_sums_.find(then);
  if (before == variance_sums_.end()) return std::nullopt;
  // A variance that is nothing, or not finite, says nothing.
  const double ratio = before->second / sums.variance_sum;
  stability_ = ratio > 0 && std::isfinite(ratio) ? std::min(ratio, 1 / ratio) : 0;
  if (stability_ < kStable || completed_tickets < options_.warmup_tickets) return std::nullopt;
  reason_ = absl::StrFormat(
      "the variance is stable: between rounds %d and %d its sum changed from %.4g to %.4g, a ratio of "
      "%.3f where %.2f is enough",
      then, sums.round, before->second, sums.variance_sum, stability_, kStable);
  return Phase::kFrozen;
}

std::optional<Phase> PhaseControl::Decide(const RoundSums& sums, uint64_t completed_tickets,
                                          const RoundBook& rounds,
                                          absl::FunctionRef<void(Phase)> announce) {
  const std::optional<Phase> phase = Note(sums, completed_tickets);
  // Where no rounds are left, none can change.
  if (!phase.has_value() || rounds.finished()) return std::nullopt;
  announce(*phase);
  Announced(*phase, rounds.announced_round());
  return phase;
}

void PhaseControl::Resume(const History& history) {
  if (history.announced_round != announced_round_) return;
  variance_sums_ = history.variance_sums;
  stability_ = history.stability;
}

void PhaseControl::Announced(Phase phase, uint64_t round) {
  announced_ = phase;
  announced_round_ = round;
  variance_sums_.clear();
  stability_ = 0;
}

}  // namespace foreshard
