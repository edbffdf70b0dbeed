// apmsqueeze: APMSqueeze (arXiv 2008.11343), synchronous Adam that after a warm-up in full
// precision freezes its variance and compresses both ways with error feedback.
//
// First phase: adam_step.h on the round's mean gradient; reply: theta.
//
// Freeze: m and v are corrected for their bias where bias_correction is set, and v becomes
// the denominator d (kernels/frozen_adam.h); all errors are zero.
//
// Second phase, C the codec, n the round's members, an absent one's C(c_i) being
// beta1 * m (momenta) or 0 (gradients):
//
//   c = (1/n) sum C(c_i) + e;  r = C(c);  e = c - r
//   m, theta from r as in kernels/frozen_adam.h            reply: the bytes of C(c)
//
// Thaw: m += e, v = d * d, e = 0; the first phase goes on, its bias corrected already.
//
// State: m, v (d once frozen) and e, one float an element each.
#include <algorithm>
#include <vector>

#include "kernels/cpu/vector_math.h"
#include "kernels/frozen_adam.h"
#include "kernels/frozen_adam_reference.h"
#include "server/update_rules/adam_step.h"
#include "server/update_rules/registry.h"

namespace foreshard {
namespace {

class ApmSqueeze final : public SqueezeRule {
 public:
  ApmSqueeze(const RuleSettings& settings, uint64_t elements, Loops loops)
      : settings_(settings),
        loops_(loops),
        bias_(settings),
        m_(elements),
        v_(elements),
        error_(elements) {}

  void Begin(const UpdateContext& context) override {
    if (!frozen()) bias_.Advance();
  }

  void Update(const UpdateContext& context, const Run& run, const float* gradient, float* theta,
              float* reply) override {
    TakeAdamStep(settings_, bias_, loops_, context, run, gradient, m_.data(), v_.data(), theta, reply);
  }

  void Reply(const UpdateContext& context, const Run& run, const float* theta,
             float* reply) const override {
    std::copy_n(theta + run.offset, run.elements, reply);
  }

  void Freeze(absl::Span<const Block> blocks) override {
    const float first = bias_.first_correction();
    const float second = bias_.second_correction();
    kernels::Scale(m_.data(), first, m_.size());
    // A segment that no gradient has reached yet says nothing about its scale.
    const double rms = v_.empty() ? 0 : std::sqrt(VarianceSum(blocks) / static_cast<double>(v_.size()));
    for (const Block& block : blocks) {
      FreezeVariance(block.elements, second, settings_.variance_floor, settings_.epsilon,
                     rms > 0 ? rms : 1, v_.data() + block.offset);
    }
    std::fill(error_.begin(), error_.end(), 0.0f);
    // Corrected once and for all.
    bias_.powers() = {0, 0};
    frozen_[0] = 1;
  }

  void Thaw() override {
    kernels::Add(m_.data(), error_.data(), m_.size());
    std::fill(error_.begin(), error_.end(), 0.0f);
    for (float& v : v_) v *= v;
    frozen_[0] = 0;
  }

  void AddAbsent(const Run& run, float* sum) const override {
    if (settings_.compress_gradients) return;
    AddScaled(run.elements, settings_.beta1, m_.data() + run.offset, sum);
  }

  void Close(const UpdateContext& context, const Run& run, const Codec& codec, const CodecKey& key,
             const float* mean, float* theta, uint8_t* result) override {
    codec.EncodeBlock(mean, error_.data() + run.offset, run.elements, key, result);
    const float* const decoded = codec.DecodeBlock(result, run.elements, key, scratch_);
    const FrozenAdamStep step = {.eta = context.eta,
                                 .beta1 = settings_.beta1,
                                 .weight_decay = run.decayed ? settings_.weight_decay : 0,
                                 .of_gradients = settings_.compress_gradients};
    const auto take = loops_ == Loops::kFused ? TakeResult : TakeResultReference;
    take(step, run.elements, decoded, m_.data() + run.offset, v_.data() + run.offset,
         theta + run.offset);
  }

  absl::Span<const float> momentum() const override { return m_; }
  absl::Span<const float> denominator() const override {
    return frozen() ? absl::MakeConstSpan(v_) : absl::Span<const float>();
  }
  absl::Span<const float> error() const override { return error_; }
  double VarianceSum(absl::Span<const Block> blocks) const override {
    double sum = 0;
    for (const Block& block : blocks) sum += SumOfVariance(v_.data() + block.offset, block.elements);
    return sum * bias_.second_correction();
  }

  void VisitState(StateVisitor& visitor) override {
    visitor.Visit("first_moment", m_);
    visitor.Visit("second_moment", v_);
    visitor.Visit("error", error_);
    visitor.VisitNumbers("bias", bias_.powers());
    visitor.VisitNumbers("frozen", frozen_);
  }

 private:
  bool frozen() const { return frozen_[0] != 0; }

  const RuleSettings settings_;
  const Loops loops_;
  AdamBias bias_;
  std::vector<float> m_;
  std::vector<float> v_;  // frozen: the denominator
  std::vector<float> error_;
  std::vector<double> frozen_ = {0};  // 0 or 1
  alignas(64) float scratch_[kMaxBlockElements];
};

}  // namespace

std::unique_ptr<UpdateRule> MakeApmSqueeze(const RuleSettings& settings, uint64_t elements,
                                           Loops loops) {
  return std::make_unique<ApmSqueeze>(settings, elements, loops);
}

}  // namespace foreshard
