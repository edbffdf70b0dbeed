#include "worker/gradient_use.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "glog/logging.h"

namespace foreshard {

absl::StatusOr<GradientUse::Place> PushGradients::PlaceOf(const Ticket& ticket) {
  if (!has_parameters_ || ticket.waited) {
    if (const absl::Status pulled = client_->Pull(Parameters::kAsSent); !pulled.ok()) return pulled;
    has_parameters_ = true;
  }
  return Place{client_->parameters(), client_};
}

ElasticSteps::ElasticSteps(const ElasticOptions& options, const ShardPlan& plan,
                           const Schema& schema, ParameterClient* client)
    : synchronous_(options.synchronous_steps > 0),
      segments_(plan.segments().size()),
      client_(client),
      replica_(options, plan, schema) {}

absl::StatusOr<GradientUse::Place> ElasticSteps::PlaceOf(const Ticket& ticket) {
  if (!has_parameters_) {
    if (const absl::Status pulled = client_->Pull(Parameters::kAsSent); !pulled.ok()) return pulled;
    replica_.Restart(client_->parameters());
    NoteClocks();
    has_parameters_ = true;
  }
  return Place{replica_.GradientPoint(ticket.number), &gate_};
}

absl::Status ElasticSteps::Take(const StepGradient& step) {
  if (step.finite) {
    replica_.Step(step.ticket, step.round, step.gradient);
    if (step.statistics != nullptr) client_->NoteStatistics(step.statistics);
  } else {
    replica_.Skip(step.ticket, step.round);
  }
  return replica_.due() ? Exchange() : absl::OkStatus();
}

absl::Status ElasticSteps::Flush() {
  return synchronous_ || replica_.tickets().empty() ? absl::OkStatus() : Exchange();
}

absl::Status ElasticSteps::Exchange() {
  // In rounds the last reply is the center as every member sees it: it moves no more
  // until this worker has pushed.
  const absl::Status pulled =
      synchronous_ ? client_->Finish() : client_->Pull(Parameters::kAsSent);
  if (!pulled.ok()) return pulled;
  NoteClocks();
  StepGradient push = {.earlier = replica_.tickets(), .round = replica_.round()};
  // Dealt again, a ticket may be lower than those before it.
  const auto highest = std::max_element(push.earlier.begin(), push.earlier.end());
  push.ticket = *highest;
  push.earlier.erase(highest);
  push.finite = replica_.Exchange(client_->parameters());
  push.gradient = replica_.difference();
  if (!push.finite) {
    LOG(WARNING) << "after ticket " << push.ticket
                 << ": this worker's own parameters are not finite any more; it begins anew at "
                    "the center. Is schedule.learning_rate too high?";
  }
  replica_.Exchanged();
  return client_->Push(push);
}

void ElasticSteps::NoteClocks() {
  for (uint32_t id = 0; id < segments_; ++id) replica_.set_clock(id, client_->clock(id));
}

}  // namespace foreshard
