// How many worker slots are taken, for rules whose formula has N in it (internal to
// server/update_rules).
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <vector>

#include "server/update_rules/update_rule.h"

namespace foreshard {

// Thread-compatible.
class JoinedSlots {
 public:
  explicit JoinedSlots(uint32_t max_workers) : taken_(max_workers) {}

  void Join(uint32_t worker) { Set(worker, 1); }
  void Leave(uint32_t worker) { Set(worker, 0); }
  uint32_t count() const { return count_; }

  void VisitState(StateVisitor& visitor) {
    visitor.VisitNumbers("joined", taken_);
    Count();
  }

 private:
  void Set(uint32_t worker, double taken) {
    assert(worker < taken_.size());
    taken_[worker] = taken;
    Count();
  }
  void Count() { count_ = static_cast<uint32_t>(std::count(taken_.begin(), taken_.end(), 1.0)); }

  std::vector<double> taken_;
  uint32_t count_ = 0;
};

}  // namespace foreshard
