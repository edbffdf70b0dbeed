// The gradient of a ticket: gathers its batch, runs it in micro-batches, clips,
// and says whether every value is finite. Knows no network.
//
//   GradientComputer computer(options, model, dataset);
//   auto step = computer.Compute(ticket, client->parameters(), *client);
//   client->Push({.ticket = ticket, .gradient = computer.gradient(),
//                 .statistics = computer.statistics(), .finite = step->finite});
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/models/model.h"

namespace foreshard {

struct GradientOptions {
  uint64_t seed = 0;
  uint32_t batch_size = 1;
  uint32_t micro_batches = 1;
  std::optional<double> clip_norm;
};

struct GradientStep {
  double loss = 0;  // mean over the batch; of text over its targets, and the second objective's added
  uint64_t correct = 0;
  uint64_t examples = 0;
  double norm = 0;  // of the gradient, before clipping
  bool finite = true;  // gradient and statistics
};

// Thread-compatible.
class GradientComputer {
 public:
  // Model and data outlive this object.
  GradientComputer(const GradientOptions& options, Model* model, const Dataset* data);

  // Batch of the ticket at `parameters` (the whole vector). Where data.flip is
  // on, each micro-batch of each ticket has its own draw; text's draws belong to record and
  // epoch, so micro-batches change nothing. Errors: the gate's, the
  // model's, the data's.
  absl::StatusOr<GradientStep> Compute(uint64_t ticket, const float* parameters,
                                       ParameterGate& gate);

  // Lets the data read this ticket's batch ahead, while another is computed.
  void Expect(uint64_t ticket);

  float* gradient() { return gradient_.data(); }              // [trainable_elements]
  const float* statistics() const { return statistics_.data(); }  // [statistic_elements]

 private:
  uint64_t Parts(absl::Span<const uint32_t> indices) const;
  static absl::Span<const uint32_t> PartOf(absl::Span<const uint32_t> indices, uint64_t part,
                                           uint64_t parts);
  uint64_t AugmentKey(uint64_t ticket, uint64_t part) const;

  const GradientOptions options_;
  Model* const model_;
  const Dataset* const data_;
  BatchOrder order_;
  BatchOrder expected_order_;  // its own epoch, so that neither is made twice
  Batch batch_;
  std::vector<float> gradient_;
  std::vector<float> statistics_;
};

// Scales the gradient to `clip_norm` where its norm is above it. Returns the norm
// before; not finite when a value is not.
double ClipGlobalNorm(absl::Span<float> gradient, std::optional<double> clip_norm);

}  // namespace foreshard
