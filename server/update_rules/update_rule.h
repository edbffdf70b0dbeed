// What a segment does with a push, and what it sends back. One rule a file; the
// file's header comment gives formula, source and state.
//
//   auto rule = MakeUpdateRule({.rule = "dana_zero", .momentum = 0.9f}, elements);
//   rule->Join(worker);
//   rule->Begin(context);
//   for (const Run& run : runs) rule->Update(context, run, gradient, theta, reply);
//
// A rule owns its state arrays (momentum and so on), the segment owns theta. All
// work is done on runs of at most kMaxBlockElements that are in cache, so a push
// is one pass over memory: decode, update and reply together. A rule reads no
// clock, no random source and no network; it never contracts multiply-adds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "common/core/block.h"
#include "kernels/codecs/codec.h"

namespace foreshard {

// From the JobSpec, already validated against the rule's traits.
struct RuleSettings {
  std::string rule;
  float momentum = 0;
  float weight_decay = 0;  // 0 for rules that take it at the worker
  float statistics_weight = 0.1f;
  uint32_t max_workers = 8;
  uint32_t workers = 1;       // N as planned
  float peak_eta = 0.1f;      // the schedule's highest rate
  bool dc_adaptive = true;
  float dc_lambda = 2;
  float dc_decay = 0.95f;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  bool bias_correction = false;  // adam, apmsqueeze
  bool measured_lag = false;  // lwp: else the number of joined workers less one
  float variance_floor = 0.01f;     // apmsqueeze: see kernels/frozen_adam.h
  bool compress_gradients = false;  // apmsqueeze: gradients, not momenta
};

// One push (or closed round) as the rule sees it.
struct UpdateContext {
  uint32_t worker = 0;       // slot of the pusher; unused when a round closes
  float eta = 0;             // at the segment's clock, for update and reply alike
  uint64_t version = 0;      // updates applied before this one
  uint64_t lag = 0;
  uint32_t contributors = 1;  // pushes of which the gradient is the mean: a round's
};

// A run inside the segment: elements [offset, offset + elements).
struct Run {
  uint64_t offset = 0;
  uint32_t elements = 0;
  bool decayed = false;
  // Of an update, for rules with needs_held: the parameters that the pusher computed
  // its gradient at, run.elements long; null where the segment does not know them.
  const float* held = nullptr;
};

// Visits every state array in a fixed order, to save and to load.
class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  virtual void Visit(std::string_view name, std::vector<float>& values) = 0;
  // What is not an array over the elements: few numbers, always as many.
  virtual void VisitNumbers(std::string_view name, std::vector<double>& values) = 0;
};

class SqueezeRule;

// Thread-compatible: the segment's mutex guards it.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // A worker slot comes (its state starts at zero) or goes.
  virtual void Join(uint32_t worker) {}
  virtual void Leave(uint32_t worker) {}

  // Once before the runs of an update, in order.
  virtual void Begin(const UpdateContext& context) {}

  // Applies `gradient` (run.elements long) to theta's run (theta points at the
  // segment's start) and, where `reply` is not null, writes the run of the reply.
  virtual void Update(const UpdateContext& context, const Run& run, const float* gradient,
                      float* theta, float* reply) = 0;

  // The reply for a worker that only reads, as if right after an update.
  virtual void Reply(const UpdateContext& context, const Run& run, const float* theta,
                     float* reply) const = 0;

  virtual void VisitState(StateVisitor& visitor) {}

  // This rule, where it is one whose rounds can be compressed both ways.
  virtual SqueezeRule* AsSqueeze() { return nullptr; }
};

// A rule with a second phase, in which workers push compressed contributions and all, the
// server too, apply the same compressed result (APMSqueeze). In its first phase it is an
// UpdateRule like any other. A closed round of the second:
//
//   rule->Begin(context);
//   for (const Run& run : runs) {
//     sum = the decoded contributions; rule->AddAbsent(run, sum) for each absent worker
//     rule->Close(context, run, codec, key, sum / members, theta, result);
//   }
class SqueezeRule : public UpdateRule {
 public:
  SqueezeRule* AsSqueeze() final { return this; }

  // From the first phase to the second, between two rounds.
  virtual void Freeze(absl::Span<const Block> blocks) = 0;
  // And back: what compression has kept back goes into the momentum.
  virtual void Thaw() = 0;

  // What an absent worker counts as.
  virtual void AddAbsent(const Run& run, float* sum) const = 0;
  // Encodes the mean (run.elements long) with the error of the rounds before to `result`,
  // and takes it as everybody does. Codec and key are the block's.
  virtual void Close(const UpdateContext& context, const Run& run, const Codec& codec,
                     const CodecKey& key, const float* mean, float* theta, uint8_t* result) = 0;

  // What a worker needs to follow: momentum, and denominator once frozen; as long as the
  // segment.
  virtual absl::Span<const float> momentum() const = 0;
  virtual absl::Span<const float> denominator() const = 0;
  // What compression has kept back at the server.
  virtual absl::Span<const float> error() const = 0;
  // First phase: the sum of the variance as Freeze would take it.
  virtual double VarianceSum(absl::Span<const Block> blocks) const = 0;
};

// State is allocated here, zeroed, for a segment of `elements`. nullptr when
// there is no such rule; FindRule in common/core/catalogue.h has the traits.
std::unique_ptr<UpdateRule> MakeUpdateRule(const RuleSettings& settings, uint64_t elements);

}  // namespace foreshard
