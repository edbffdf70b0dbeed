// smega2: one momentum that steps once in N pushes, a bucket, with the bucket's mean
// gradient, and replies that look a whole turn of the workers ahead (SMEGA2, ICPP
// 2022).
//
//   g' = g + lambda * theta                    lambda on decayed runs
//   b += g'
//   theta -= eta * (g' + gamma * v)
//   s = (s + 1) mod N
//   when s = 0: v = gamma * v + b / N;  b = 0
//   reply: theta - (eta * gamma) * ((N + s * (gamma - 1)) * v + (s / N) * b)
//
// N is the number of joined workers at the bucket's start; while s = 0 the next bucket
// has not started and N is the number of now.
//
// State: v and b, one float an element each; s and N; the joined slots.
#include <algorithm>
#include <vector>

#include "kernels/cpu/isa.h"
#include "server/update_rules/joined_slots.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

// The bucket stays open: v is as it was.
FORESHARD_ISA_INLINE void GatherBody(float eta, float gamma, float lambda, float ahead_v,
                                     float ahead_b, const float* __restrict gradient, uint64_t n,
                                     const float* __restrict v, float* __restrict bucket,
                                     float* __restrict theta, float* __restrict reply) {
  for (uint64_t i = 0; i < n; ++i) {
    float g = gradient[i];
    if (lambda != 0) g += lambda * theta[i];
    const float gathered = bucket[i] + g;
    const float next = theta[i] - eta * (g + gamma * v[i]);
    bucket[i] = gathered;
    theta[i] = next;
    if (reply != nullptr) reply[i] = next - (ahead_v * v[i] + ahead_b * gathered);
  }
}
FORESHARD_ISA_VARIANTS(void, Gather,
                       (float eta, float gamma, float lambda, float ahead_v, float ahead_b,
                        const float* gradient, uint64_t n, const float* v, float* bucket,
                        float* theta, float* reply),
                       (eta, gamma, lambda, ahead_v, ahead_b, gradient, n, v, bucket, theta,
                        reply))

// The bucket's last push.
FORESHARD_ISA_INLINE void CloseBody(float eta, float gamma, float lambda, float share,
                                    float ahead_v, const float* __restrict gradient, uint64_t n,
                                    float* __restrict v, float* __restrict bucket,
                                    float* __restrict theta, float* __restrict reply) {
  for (uint64_t i = 0; i < n; ++i) {
    float g = gradient[i];
    if (lambda != 0) g += lambda * theta[i];
    const float next = theta[i] - eta * (g + gamma * v[i]);
    const float momentum = gamma * v[i] + share * (bucket[i] + g);
    v[i] = momentum;
    bucket[i] = 0;
    theta[i] = next;
    if (reply != nullptr) reply[i] = next - ahead_v * momentum;
  }
}
FORESHARD_ISA_VARIANTS(void, Close,
                       (float eta, float gamma, float lambda, float share, float ahead_v,
                        const float* gradient, uint64_t n, float* v, float* bucket, float* theta,
                        float* reply),
                       (eta, gamma, lambda, share, ahead_v, gradient, n, v, bucket, theta, reply))

class Smega2 final : public UpdateRule {
 public:
  Smega2(const RuleSettings& settings, uint64_t elements, Loops loops)
      : momentum_(settings.momentum),
        weight_decay_(settings.weight_decay),
        loops_(loops),
        joined_(settings.max_workers),
        v_(elements),
        bucket_(elements) {}

  void Join(uint32_t worker) override { joined_.Join(worker); }
  void Leave(uint32_t worker) override { joined_.Leave(worker); }

  void Begin(const UpdateContext& context) override {
    if (bucket_state_[kPushes] == 0) bucket_state_[kSize] = JoinedNow();
    closing_size_ = bucket_state_[kSize];
    if (++bucket_state_[kPushes] == bucket_state_[kSize]) bucket_state_[kPushes] = 0;
  }

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    const bool closes = bucket_state_[kPushes] == 0;
    const auto share = static_cast<float>(1 / closing_size_);
    const float lambda = run.decayed ? weight_decay_ : 0;
    float* const at = theta + run.offset;
    float* const v = v_.data() + run.offset;
    float* const bucket = bucket_.data() + run.offset;
    if (loops_ == Loops::kFused) {
      const Ahead ahead = AheadOf(context);
      if (closes) {
        return Close(context.eta, momentum_, lambda, share, ahead.v, gradient, run.elements, v,
                     bucket, at, reply);
      }
      return Gather(context.eta, momentum_, lambda, ahead.v, ahead.bucket, gradient, run.elements,
                    v, bucket, at, reply);
    }
    for (uint32_t i = 0; i < run.elements; ++i) {
      const float g = lambda == 0 ? gradient[i] : gradient[i] + lambda * at[i];
      bucket[i] += g;
      at[i] -= context.eta * (g + momentum_ * v[i]);
      if (!closes) continue;
      v[i] = momentum_ * v[i] + share * bucket[i];
      bucket[i] = 0;
    }
    if (reply != nullptr) Reply(context, run, theta, reply);
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    const Ahead ahead = AheadOf(context);
    const float* const at = theta + run.offset;
    const float* const v = v_.data() + run.offset;
    const float* const bucket = bucket_.data() + run.offset;
    for (uint32_t i = 0; i < run.elements; ++i) {
      reply[i] = at[i] - (ahead.v * v[i] + ahead.bucket * bucket[i]);
    }
  }

  void VisitState(StateVisitor& visitor) override {
    visitor.Visit("momentum", v_);
    visitor.Visit("bucket", bucket_);
    visitor.VisitNumbers("bucket_state", bucket_state_);
    joined_.VisitState(visitor);
  }

 private:
  enum { kPushes, kSize };  // s and N
  struct Ahead {
    float v;       // eta * gamma * (N + s * (gamma - 1))
    float bucket;  // eta * gamma * s / N
  };

  double JoinedNow() const { return std::max(joined_.count(), 1u); }

  Ahead AheadOf(const UpdateContext& context) const {
    const double s = bucket_state_[kPushes];
    const double n = s == 0 ? JoinedNow() : bucket_state_[kSize];
    const double scale = static_cast<double>(context.eta) * momentum_;
    return {static_cast<float>(scale * (n + s * (momentum_ - 1.0))),
            static_cast<float>(scale * s / n)};
  }

  const float momentum_;
  const float weight_decay_;
  const Loops loops_;
  double closing_size_ = 1;  // N of the push at hand
  JoinedSlots joined_;
  std::vector<float> v_;
  std::vector<float> bucket_;  // b
  std::vector<double> bucket_state_ = {0, 1};
};

}  // namespace

std::unique_ptr<UpdateRule> MakeSmega2(const RuleSettings& settings, uint64_t elements,
                                       Loops loops) {
  return std::make_unique<Smega2>(settings, elements, loops);
}

}  // namespace foreshard
