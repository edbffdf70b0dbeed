// The workers' momenta and their running sum, which the rules of the DANA family
// share (internal to server/update_rules).
//
// State: S = sum over workers of v_j, and v_i for each joined worker. A worker that
// leaves takes its v_i out of S; one that joins starts at v_i = 0.
//
// The running sum S costs O(d) a push instead of O(N d), and drifts in fp32: after a
// thousandfold drop of the gradients its error would be 5.5e-3 of it. So push t
// recomputes slice t mod K of S from the v_j, in fp64 in the order of slots. With
// K = 4 * max_workers a full house reads N d / K = d / 4 floats more a push, 1 of
// the 28 bytes an element that a push with its reply moves anyway; K is at least 16.
#pragma once

#include <cstdint>
#include <vector>

#include "server/update_rules/registry.h"
#include "server/update_rules/worker_vectors.h"

namespace foreshard {

// Thread-compatible.
class MomentumSum {
 public:
  MomentumSum(uint32_t max_workers, uint64_t elements, Loops loops);

  void Join(uint32_t worker);
  void Leave(uint32_t worker);

  // Recomputes the slice whose turn it is; once before the runs of an update.
  void Begin(uint64_t version);

  bool joined(uint32_t worker) const { return v_.joined(worker); }
  float* momentum(uint32_t worker) { return v_[worker]; }
  float* sum() { return sum_.data(); }

  // The reply of the rules with one S: theta - ahead * S on the run, ahead = eta *
  // gamma. `theta` points at the segment, `reply` at the run.
  void LookAhead(float ahead, const Run& run, const float* theta, float* reply) const;

  void VisitState(StateVisitor& visitor);

 private:
  // S = sum of the v_j on [begin, end).
  void Recompute(uint64_t begin, uint64_t end);

  const Loops loops_;
  const uint32_t slices_;  // K
  const uint64_t slice_elements_;
  WorkerVectors v_;
  std::vector<float> sum_;  // S
};

}  // namespace foreshard
