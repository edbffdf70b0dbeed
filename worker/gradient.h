// The gradient of a ticket: gathers its batch, runs it in micro-batches, clips,
// and says whether every value is finite. Knows no network.
//
//   GradientComputer computer(options, model, dataset);
//   auto step = computer.Compute(ticket, client->parameters(), *client);
//   client->Push({.ticket = ticket, .gradient = computer.gradient(),
//                 .statistics = computer.statistics(), .finite = step->finite});
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/step_encoder.h"
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
  // Model and data outlive this object. With an encoder, of the model's step memory, gradients
  // stay on the device; it outlives this too.
  GradientComputer(const GradientOptions& options, Model* model, const Dataset* data,
                   kernels::StepEncoder* encoder = nullptr);

  // Batch of the ticket at `parameters` (the whole vector). Where data.flip is
  // on, each micro-batch of each ticket has its own draw; text's draws belong to record and
  // epoch, so micro-batches change nothing. Errors: the gate's, the
  // model's, the data's.
  //
  // `prepare` is called where gradients stay on the device, while it computes, with the norm to
  // clip to: it gives the encoder the step's pushes (ParameterClient::Prepare). Its errors end the
  // step.
  using Prepare = std::function<absl::Status(std::optional<double> clip_norm)>;
  absl::StatusOr<GradientStep> Compute(uint64_t ticket, const float* parameters,
                                       ParameterGate& gate, const Prepare& prepare = nullptr);
  // In place of a step: a gradient of zeros.
  absl::Status Clear(const Prepare& prepare);

  // Lets the data read this ticket's batch ahead, while another is computed.
  void Expect(uint64_t ticket);

  // [trainable_elements]; null where it stays on the device.
  float* gradient() { return encoder_ == nullptr ? gradient_.data() : nullptr; }
  const float* statistics() const { return statistics_.data(); }  // [statistic_elements]

 private:
  uint64_t Parts(absl::Span<const uint32_t> indices) const;
  static absl::Span<const uint32_t> PartOf(absl::Span<const uint32_t> indices, uint64_t part,
                                           uint64_t parts);
  uint64_t AugmentKey(uint64_t ticket, uint64_t part) const;

  const GradientOptions options_;
  Model* const model_;
  const Dataset* const data_;
  kernels::StepEncoder* const encoder_;
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
