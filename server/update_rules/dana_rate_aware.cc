// dana_rate_aware: dana_zero for unequal workers. DANA's reply assumes that each worker
// reports exactly once while worker i computes; here worker j counts for the n updates
// that its rate makes likely (after DANA-Zero, arXiv 1907.11612; the extension is ours).
//
//   v_i' = gamma * v_i + g + lambda * theta    lambda on decayed runs
//   S_q += v_i' - v_i;  v_i = v_i'             q: the class of i
//   theta -= eta * v_i
//   reply to i: theta - sum over classes q of (eta * c_q) * S_q
//     c_q = gamma * (1 - gamma^n) / (1 - gamma),  c_q = gamma where n = 1
//     n = min(4, 2^((q - q_i) / 2))
//   S_q = sum over the workers of class q of v_j
//
// A worker's rate is its share of the pushes of late, as counts that forget a turn of
// all workers in 64; no clock is read. Its class is the nearest half octave, from -4 to
// 4, of its rate over the mean one, and is looked at when it pushes; it changes once the
// rate is 0.35 octaves off, not at every wobble. One that joins has the mean rate and
// class 0. A reader is in class 0.
//
// The S_q are recomputed by slices, as in momentum_sum.h, and whole when a worker
// leaves or changes its class. A push costs O(d), and d for each class with workers in
// its reply.
//
// State: v_i for each joined worker; nine S_q, one float an element each; the rates and
// classes of the slots.
#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cpu/isa.h"
#include "server/update_rules/registry.h"
#include "server/update_rules/worker_vectors.h"

namespace foreshard {
namespace {

constexpr int kLargest = 4;  // classes are -4 to 4
constexpr int kClasses = 2 * kLargest + 1;
constexpr double kMostUpdates = 4;
constexpr double kTurns = 64;
constexpr double kTolerance = 0.7;  // in classes

FORESHARD_ISA_INLINE void StepBody(float eta, float gamma, float lambda,
                                   const float* __restrict gradient, uint64_t n,
                                   float* __restrict v, float* __restrict sum,
                                   float* __restrict theta) {
  for (uint64_t i = 0; i < n; ++i) {
    float g = gradient[i];
    if (lambda != 0) g += lambda * theta[i];
    const float momentum = gamma * v[i] + g;
    sum[i] += momentum - v[i];
    v[i] = momentum;
    theta[i] -= eta * momentum;
  }
}
FORESHARD_ISA_VARIANTS(void, Step,
                       (float eta, float gamma, float lambda, const float* gradient, uint64_t n,
                        float* v, float* sum, float* theta),
                       (eta, gamma, lambda, gradient, n, v, sum, theta))

FORESHARD_ISA_INLINE void SubtractBody(float factor, const float* __restrict sum, uint64_t n,
                                       float* __restrict values) {
  for (uint64_t i = 0; i < n; ++i) values[i] -= factor * sum[i];
}
FORESHARD_ISA_VARIANTS(void, Subtract, (float factor, const float* sum, uint64_t n, float* values),
                       (factor, sum, n, values))

FORESHARD_ISA_INLINE void AddWideBody(const float* __restrict values, uint64_t n,
                                      double* __restrict sums) {
  for (uint64_t i = 0; i < n; ++i) sums[i] += values[i];
}
FORESHARD_ISA_VARIANTS(void, AddWide, (const float* values, uint64_t n, double* sums),
                       (values, n, sums))

class DanaRateAware final : public UpdateRule {
 public:
  DanaRateAware(const RuleSettings& settings, uint64_t elements, Loops loops)
      : momentum_(settings.momentum),
        weight_decay_(settings.weight_decay),
        loops_(loops),
        slices_(std::max(16u, 4 * settings.max_workers)),
        slice_elements_((elements + slices_ - 1) / slices_),
        elements_(elements),
        v_(settings.max_workers, elements),
        rates_(settings.max_workers),
        classes_(settings.max_workers) {
    for (std::vector<float>& sum : sums_) sum.resize(elements);
    for (int apart = -kClasses + 1; apart < kClasses; ++apart) {
      const double gamma = momentum_;
      const double n = std::min(kMostUpdates, std::exp2(apart / 2.0));
      weights_[apart + kClasses - 1] =
          apart == 0 ? momentum_
                     : static_cast<float>(gamma * (1 - std::pow(gamma, n)) / (1 - gamma));
    }
  }

  void Join(uint32_t worker) override {
    if (v_.joined(worker)) Leave(worker);
    const double mean = MeanRate();
    v_.Join(worker);
    rates_[worker] = mean;
    classes_[worker] = 0;
  }

  void Leave(uint32_t worker) override {
    if (!v_.joined(worker)) return;
    const int from = ClassOf(worker);
    v_.Leave(worker);
    rates_[worker] = classes_[worker] = 0;
    Recompute(from, 0, elements_);
  }

  void Begin(const UpdateContext& context) override {
    assert(v_.joined(context.worker));
    Count(context.worker);
    const uint64_t begin = std::min(context.version % slices_ * slice_elements_, elements_);
    const uint64_t end = std::min(begin + slice_elements_, elements_);
    for (int q = -kLargest; q <= kLargest; ++q) {
      if (HasWorkers(q)) Recompute(q, begin, end);
    }
  }

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    float* const v = v_[context.worker] + run.offset;
    float* const sum = Sum(ClassOf(context.worker)) + run.offset;
    if (loops_ == Loops::kFused) {
      Step(context.eta, momentum_, lambda, gradient, run.elements, v, sum, at);
    } else {
      for (uint32_t i = 0; i < run.elements; ++i) {
        const float g = lambda == 0 ? gradient[i] : gradient[i] + lambda * at[i];
        const float next = momentum_ * v[i] + g;
        sum[i] += next - v[i];
        v[i] = next;
        at[i] -= context.eta * v[i];
      }
    }
    if (reply != nullptr) Reply(context, run, theta, reply);
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    const bool joined = context.worker < v_.slots() && v_.joined(context.worker);
    const int own = joined ? ClassOf(context.worker) : 0;
    std::copy_n(theta + run.offset, run.elements, reply);
    for (int q = -kLargest; q <= kLargest; ++q) {
      if (!HasWorkers(q)) continue;
      const float factor = context.eta * weights_[q - own + kClasses - 1];
      const float* const sum = sums_[q + kLargest].data() + run.offset;
      if (loops_ == Loops::kFused) {
        Subtract(factor, sum, run.elements, reply);
      } else {
        for (uint32_t i = 0; i < run.elements; ++i) reply[i] = reply[i] - factor * sum[i];
      }
    }
  }

  void VisitState(StateVisitor& visitor) override {
    for (int q = -kLargest; q <= kLargest; ++q) {
      visitor.Visit("momentum_sum." + std::to_string(q), sums_[q + kLargest]);
    }
    v_.VisitState(visitor);
    visitor.VisitNumbers("rates", rates_);
    visitor.VisitNumbers("classes", classes_);
  }

 private:
  int ClassOf(uint32_t worker) const { return static_cast<int>(classes_[worker]); }
  float* Sum(int q) { return sums_[q + kLargest].data(); }

  bool HasWorkers(int q) const {
    for (uint32_t worker = 0; worker < v_.slots(); ++worker) {
      if (v_.joined(worker) && ClassOf(worker) == q) return true;
    }
    return false;
  }

  uint32_t Joined() const {
    uint32_t joined = 0;
    for (uint32_t worker = 0; worker < v_.slots(); ++worker) joined += v_.joined(worker);
    return joined;
  }

  // Of the joined workers; 1 where there are none.
  double MeanRate() const {
    double sum = 0;
    for (const double rate : rates_) sum += rate;
    const uint32_t joined = Joined();
    return joined == 0 ? 1 : sum / joined;
  }

  // A push of this worker: all rates, and its class.
  void Count(uint32_t worker) {
    const double forget = 1 / (kTurns * Joined());
    for (double& rate : rates_) rate *= 1 - forget;
    // Of a turn of all workers, one push is this one's: equal workers stay at 1.
    rates_[worker] += 1 / kTurns;
    const double exact = std::clamp(2 * std::log2(rates_[worker] / MeanRate()),
                                    static_cast<double>(-kLargest), static_cast<double>(kLargest));
    const int from = ClassOf(worker);
    if (std::abs(exact - from) <= kTolerance) return;
    classes_[worker] = std::round(exact);
    Recompute(from, 0, elements_);
    Recompute(ClassOf(worker), 0, elements_);
  }

  // S_q = sum of its workers' v_j on [begin, end), in fp64 in the order of slots.
  void Recompute(int q, uint64_t begin, uint64_t end) {
    constexpr uint64_t kPiece = 512;
    for (uint64_t at = begin; at < end; at += kPiece) {
      const uint64_t n = std::min(kPiece, end - at);
      double sums[kPiece] = {};
      for (uint32_t worker = 0; worker < v_.slots(); ++worker) {
        if (!v_.joined(worker) || ClassOf(worker) != q) continue;
        const float* const v = v_[worker] + at;
        if (loops_ == Loops::kFused) {
          AddWide(v, n, sums);
        } else {
          for (uint64_t i = 0; i < n; ++i) sums[i] += v[i];
        }
      }
      for (uint64_t i = 0; i < n; ++i) Sum(q)[at + i] = static_cast<float>(sums[i]);
    }
  }

  const float momentum_;
  const float weight_decay_;
  const Loops loops_;
  const uint32_t slices_;
  const uint64_t slice_elements_;
  const uint64_t elements_;
  std::array<float, 2 * kClasses - 1> weights_;  // c by the classes apart
  WorkerVectors v_;
  std::array<std::vector<float>, kClasses> sums_;  // S_q
  std::vector<double> rates_;
  std::vector<double> classes_;
};

}  // namespace

std::unique_ptr<UpdateRule> MakeDanaRateAware(const RuleSettings& settings, uint64_t elements,
                                              Loops loops) {
  return std::make_unique<DanaRateAware>(settings, elements, loops);
}

}  // namespace foreshard
