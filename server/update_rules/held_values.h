// What the pusher holds of a run (internal to server/update_rules).
#pragma once

#include <algorithm>

#include "common/core/block.h"
#include "server/update_rules/update_rule.h"

namespace foreshard {

// Where the segment does not know it, a copy of theta: as if the worker were up to
// date.
class HeldValues {
 public:
  // `theta` points at the run.
  HeldValues(const Run& run, const float* theta) : values_(run.held) {
    if (values_ != nullptr) return;
    std::copy_n(theta, run.elements, copy_);
    values_ = copy_;
  }
  HeldValues(const HeldValues&) = delete;
  HeldValues& operator=(const HeldValues&) = delete;

  const float* values() const { return values_; }

 private:
  float copy_[kMaxBlockElements];
  const float* values_;
};

}  // namespace foreshard
