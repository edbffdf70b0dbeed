// Drives one rule with gradients that do not depend on it, beside a reference in
// fp64.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "common/core/random.h"
#include "server/update_rules/update_rule.h"

namespace foreshard {

using Vector = std::vector<double>;

// Relative distance in norm.
template <typename A, typename B>
double DistanceOf(const std::vector<A>& a, const std::vector<B>& b) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(difference / size);
}

// One segment, one run, and what each worker holds.
class RuleRun {
 public:
  RuleRun(const RuleSettings& settings, uint32_t workers, uint64_t elements)
      : rule_(MakeUpdateRule(settings, elements)), theta_(elements), reply_(elements) {
    for (uint64_t i = 0; i < elements; ++i) theta_[i] = static_cast<float>(RandomNormal(1, 0, i));
    for (uint32_t worker = 0; worker < workers; ++worker) rule_->Join(worker);
    held_.assign(workers, theta_);
    versions_.assign(workers, 0);
  }

  // Push k, decayed; `knows_held` false: the segment does not know x_i.
  void Push(uint32_t worker, const std::vector<float>& gradient, float eta,
            bool knows_held = true) {
    const UpdateContext context{.worker = worker,
                                .eta = eta,
                                .version = version_,
                                .lag = version_ - versions_[worker]};
    const Run run{.offset = 0,
                  .elements = static_cast<uint32_t>(theta_.size()),
                  .decayed = true,
                  .held = knows_held ? held_[worker].data() : nullptr};
    rule_->Begin(context);
    rule_->Update(context, run, gradient.data(), theta_.data(), reply_.data());
    held_[worker] = reply_;
    versions_[worker] = ++version_;
  }

  UpdateRule& rule() { return *rule_; }
  const std::vector<float>& theta() const { return theta_; }
  const std::vector<float>& held(uint32_t worker) const { return held_[worker]; }
  uint64_t version() const { return version_; }

 private:
  std::unique_ptr<UpdateRule> rule_;
  std::vector<float> theta_;
  std::vector<float> reply_;
  std::vector<std::vector<float>> held_;
  std::vector<uint64_t> versions_;
  uint64_t version_ = 0;
};

inline std::vector<float> RandomGradient(uint64_t push, uint64_t elements) {
  std::vector<float> gradient(elements);
  for (uint64_t i = 0; i < elements; ++i) {
    gradient[i] = static_cast<float>(0.2 * RandomNormal(2, push, i) + 0.05);
  }
  return gradient;
}

inline uint32_t RandomWorker(uint64_t push, uint32_t workers) {
  return static_cast<uint32_t>(RandomBits(3, workers, push) % workers);
}

}  // namespace foreshard
