// The numbers of yellow_fin: rate and momentum from norms of gradients (YellowFin,
// arXiv 1706.03471). Formulas in yellow_fin.cc (internal to server/update_rules).
#pragma once

#include <cstdint>
#include <vector>

#include "server/update_rules/update_rule.h"

namespace foreshard {

// sqrt(mu_1): the root in [0, 1] of p x = (1 - x)^3, which is y^3 + p y + p = 0 with
// x = y + 1. p may be infinite.
double YellowFinRoot(double p);

// Thread-compatible.
class YellowFinTuner {
 public:
  // Takes in one gradient: its squared norm (above 0) and that of the running mean of
  // gradients, free of bias.
  void Measure(double square, double mean_square);

  // Nothing is measured yet: rate() and momentum() mean nothing.
  bool empty() const { return numbers_[kSteps] == 0; }
  double rate() const { return numbers_[kRate]; }
  double momentum() const { return numbers_[kMomentum]; }  // mu*

  void VisitState(StateVisitor& visitor);

 private:
  enum { kSteps, kLogMax, kLogMin, kNorm, kSquare, kDistance, kRate, kMomentum, kNumbers };

  std::vector<double> numbers_ = std::vector<double>(kNumbers);
  std::vector<double> window_ = std::vector<double>(20);  // latest squared norms
};

}  // namespace foreshard
