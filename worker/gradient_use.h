// What a worker does with its gradients: where each is computed, and what becomes of
// it. One way for rules whose server takes gradients, one for elastic averaging.
//
//   auto use = std::make_unique<PushGradients>(client);
//   auto at = use->PlaceOf(ticket);
//   auto step = computer.Compute(ticket.number, at->parameters, *at->gate);
//   RETURN_IF_ERROR(use->Ready());
//   RETURN_IF_ERROR(use->Take({.ticket = ticket.number, .gradient = ..., .finite = ...}));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/elastic_replica.h"
#include "worker/lead_client.h"
#include "worker/models/model.h"
#include "worker/parameter_client.h"

namespace foreshard {

// Thread-compatible. Errors are the client's.
class GradientUse {
 public:
  struct Place {
    const float* parameters;  // the whole vector
    ParameterGate* gate;      // lets through what is there of it
  };

  virtual ~GradientUse() = default;
  // Where the gradient of this ticket is to be computed; valid until Take. The first call
  // fetches the first parameters: who is dealt nothing has no place in the segments.
  virtual absl::StatusOr<Place> PlaceOf(const Ticket& ticket) = 0;
  // Waits for what must be over before Take.
  virtual absl::Status Ready() = 0;
  // `step.round` is the worker's step. The memory that it points to may be written again
  // once the next Place's gate lets its elements through.
  virtual absl::Status Take(const StepGradient& step) = 0;
  // Begins to send what is held back, where it need not wait for other workers.
  virtual absl::Status Flush() = 0;
};

// Every gradient is pushed; the next is computed at what comes back, or, where its ticket
// was waited for, at what there is by then: never at anything older than the ticket.
class PushGradients final : public GradientUse {
 public:
  explicit PushGradients(ParameterClient* client) : client_(client) {}

  absl::StatusOr<Place> PlaceOf(const Ticket& ticket) override;
  absl::Status Ready() override { return client_->Finish(); }
  absl::Status Take(const StepGradient& step) override { return client_->Push(step); }
  absl::Status Flush() override { return absl::OkStatus(); }

 private:
  ParameterClient* const client_;
  bool has_parameters_ = false;
};

// Gradients are steps on the worker's own parameters; what is pushed, now and then and
// while the next steps go on, is their difference to the center.
class ElasticSteps final : public GradientUse {
 public:
  // Begins at the center as the first ticket finds it. `plan` outlives this object.
  ElasticSteps(const ElasticOptions& options, const ShardPlan& plan, const Schema& schema,
               ParameterClient* client);

  absl::StatusOr<Place> PlaceOf(const Ticket& ticket) override;
  absl::Status Ready() override { return absl::OkStatus(); }
  absl::Status Take(const StepGradient& step) override;
  absl::Status Flush() override;

 private:
  absl::Status Exchange();
  void NoteClocks();

  const bool synchronous_;
  const size_t segments_;
  ParameterClient* const client_;
  ElasticReplica replica_;
  bool has_parameters_ = false;
  OpenGate gate_;
};

}  // namespace foreshard
