// One vector a worker slot, there only while the slot is taken (internal to
// server/update_rules).
#pragma once

#include <cassert>
#include <cstdint>
#include <string>
#include <vector>

#include "server/update_rules/update_rule.h"

namespace foreshard {

// Thread-compatible.
class WorkerVectors {
 public:
  WorkerVectors(uint32_t max_workers, uint64_t elements)
      : elements_(elements), vectors_(max_workers) {}

  uint32_t slots() const { return static_cast<uint32_t>(vectors_.size()); }
  bool joined(uint32_t worker) const { return !vectors_[worker].empty(); }

  // Zeros; again zeros for a slot that was taken already.
  void Join(uint32_t worker) {
    assert(worker < vectors_.size());
    vectors_[worker].assign(elements_, 0.0f);
  }

  // Gives the memory back.
  void Leave(uint32_t worker) {
    assert(worker < vectors_.size());
    std::vector<float>().swap(vectors_[worker]);
  }

  float* operator[](uint32_t worker) { return vectors_[worker].data(); }
  const float* operator[](uint32_t worker) const { return vectors_[worker].data(); }

  // "momentum.0" and so on; empty for a free slot.
  void VisitState(StateVisitor& visitor) {
    for (uint32_t i = 0; i < vectors_.size(); ++i) {
      visitor.Visit("momentum." + std::to_string(i), vectors_[i]);
    }
  }

 private:
  const uint64_t elements_;
  std::vector<std::vector<float>> vectors_;
};

}  // namespace foreshard
