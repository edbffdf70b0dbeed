// The worker's half of elastic averaging (EASGD and EAMSGD, arXiv 1412.6651): SGD on
// parameters of the worker's own, and the difference by which worker and center move
// towards each other.
//
//   LocalSgd local({.momentum = 0.9f}, schema.trainable_elements(), schema.elements());
//   local.Restart(center);
//   for (each batch) {
//     for (each segment) local.LookAhead(begin, elements, eta);
//     gradient = ... at local.gradient_point();
//     for (each segment) local.Step(plan.blocks, plan.begin, eta, gradient + plan.begin);
//   }
//   for (each segment) local.Difference(begin, elements, alpha, center + begin, e + begin);
//
// Per element, delta the momentum and lambda the weight decay on decayed blocks:
//
//   gradient point: x - (eta * delta) * v      x itself without momentum
//   g' = g + lambda * x
//   v = delta * v + g';  x -= eta * v          x -= eta * g' without momentum
//   e = alpha * (x - center);  x -= e
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/core/block.h"

namespace foreshard {

struct LocalSgdSettings {
  float momentum = 0;      // delta; 0: plain SGD, which keeps no v
  float weight_decay = 0;  // lambda
};

// Thread-compatible; one object a worker. Positions count from the start of the flat
// vector, whose first `trainable_elements` it steps; `begin` is a segment's place there.
class LocalSgd {
 public:
  LocalSgd(const LocalSgdSettings& settings, uint64_t trainable_elements, uint64_t elements);

  // Begins at `parameters` [elements], at rest.
  void Restart(const float* parameters);

  // Places these elements of the gradient point for a step at this rate.
  void LookAhead(uint64_t begin, uint64_t elements, float eta);
  // [elements]; what no LookAhead has placed is as Restart left it.
  const float* gradient_point() const { return momentum() ? ahead_.data() : x_.data(); }

  // One local step on a segment's blocks, whose offsets count from its start, as the
  // gradient's elements do.
  void Step(absl::Span<const Block> blocks, uint64_t begin, float eta, const float* gradient);

  // e: moves x by -e and writes e. `center` and `difference` are the elements' own.
  // False where a value of e is not finite; then only Restart helps.
  bool Difference(uint64_t begin, uint64_t elements, float alpha, const float* center,
                  float* difference);

  // The worker's own parameters, [elements].
  absl::Span<const float> parameters() const { return x_; }
  // v, [trainable_elements]; empty without momentum.
  absl::Span<const float> velocity() const { return v_; }

 private:
  bool momentum() const { return settings_.momentum != 0; }

  const LocalSgdSettings settings_;
  std::vector<float> x_;
  std::vector<float> v_;
  std::vector<float> ahead_;  // the gradient point; empty without momentum
};

}  // namespace foreshard
