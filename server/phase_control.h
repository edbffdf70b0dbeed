// Decides when the rounds of a rule with a compressed phase change phase: when the variance
// is stable enough to be frozen, and when compression keeps back so much that the job must
// return to full precision. One decision for all, on the lead; a decision is announced with
// the view (server/round_book.h) and is in force some rounds later.
//
//   PhaseControl control(options);
//   const auto phase = control.Decide(sums, dealer.completed_tickets(), *dealer.rounds(),
//                                     [&](Phase phase) { /* give it to the dealer */ });
//
// Freeze (APMSqueeze, arXiv 2008.11343; 1-bit Adam, arXiv 2102.02888): with V(t) the sum of
// the variance after round t and D = 1 / (1 - beta2) rounds,
//   min(V(t - D) / V(t), V(t) / V(t - D)) >= 0.96,   once the learning rate has risen.
//
// Return: ||e|| / ||m|| > limit, e the error of a worker or of all servers, m the momentum.
// A job whose freeze is automatic may freeze again, D rounds later at the earliest.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "common/core/round_sums.h"
#include "server/event.h"
#include "server/round_book.h"

namespace foreshard {

struct PhaseControlOptions {
  bool automatic = false;  // freezes where the variance is stable; else at freeze_round
  uint64_t freeze_round = 1;
  uint64_t span_rounds = 1000;  // D, a multiple of the rounds between two measures
  uint64_t warmup_tickets = 0;  // of the learning rate
  double error_limit = 50;
};

// Thread-compatible.
class PhaseControl {
 public:
  explicit PhaseControl(const PhaseControlOptions& options) : options_(options) {}

  // Takes what a round came to, in any order and as every worker saw it; the phase to be
  // announced, where it is another one. None while an announced one is not in force yet.
  std::optional<Phase> Note(const RoundSums& sums, uint64_t completed_tickets);
  void Announced(Phase phase, uint64_t round);
  // Both: `announce` is to give the phase that Note says to the owner of `rounds`. That phase;
  // none, too, where no rounds are left.
  std::optional<Phase> Decide(const RoundSums& sums, uint64_t completed_tickets,
                              const RoundBook& rounds, absl::FunctionRef<void(Phase)> announce);

  // For another start of the lead: what Note goes by, but for its options.
  struct History {
    uint64_t announced_round = 0;
    std::map<uint64_t, double> variance_sums;  // by round
    double stability = 0;
  };
  History history() const { return {announced_round_, variance_sums_, stability_}; }
  // One beyond the newest round in it; 0: none.
  uint64_t measured_before() const { return variance_sums_.empty() ? 0 : variance_sums_.rbegin()->first + 1; }
  // After Announced, where there was one. A history of another phase is passed over.
  void Resume(const History& history);

  // Why Note has decided so, in words.
  const std::string& reason() const { return reason_; }
  // The newest ratio of the sums of variance, at most 1; 0: none yet.
  double stability() const { return stability_; }

 private:
  bool Frozen(uint64_t round) const;

  PhaseControlOptions options_;
  std::optional<Phase> announced_;
  uint64_t announced_round_ = 0;
  std::map<uint64_t, double> variance_sums_;  // by round, over the last span
  double stability_ = 0;
  std::string reason_;
};

}  // namespace foreshard
