// Everything a worker does with parameters: brings first values, pulls, and
// exchanges gradients for parameters, a segment at a time, with all servers.
//
//   auto client = ParameterClient::Connect(options).value();
//   RETURN_IF_ERROR(client->Initialise(first_values));   // only what is missing
//   RETURN_IF_ERROR(client->Pull(Parameters::kAsSent));
//   for (each ticket) {
//     model.ForwardBackward(batch, client->parameters(), *client, ...);  // waits as it goes
//     RETURN_IF_ERROR(client->Push({.ticket = ticket, .gradient = gradient}));
//   }
//   RETURN_IF_ERROR(client->Finish());
//
// One own thread does worker half -> encode with error feedback -> send, and
// reads the replies into the parameter vector; the next step's forward pass asks
// the gate layer by layer and starts as soon as the first layers are there.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/core/round_sums.h"
#include "common/core/schedule.h"
#include "common/core/schema.h"
#include "common/core/shard_plan.h"
#include "common/net/credentials.h"
#include "foreshard/v1/exchange.pb.h"
#include "grpcpp/channel.h"
#include "kernels/worker_half.h"
#include "worker/models/model.h"
#include "worker/push_encoder.h"

namespace foreshard {

// What one acknowledged push came to.
struct PushFigures {
  uint64_t ticket = 0;
  std::vector<uint64_t> earlier;  // as in StepGradient
  bool skipped = false;        // the gradient was not finite; nothing was applied
  uint32_t duplicates = 0;     // segments that had it already (an answer was lost)
  uint32_t discarded = 0;      // segments for which it was too old
  bool applied = false;        // at least one segment applied it
  double lag_updates = 0;      // mean over the elements of those segments
  uint64_t max_lag_updates = 0;
  // RMS parameter distances over the segments: sqrt(sum d_s gap_s^2 / sum d_s).
  // Only where `measured`: a segment may not know what the worker held.
  bool measured = false;
  double gap = 0;
  double surprise = 0;
  float learning_rate = 0;     // of the first segment
  double encode_seconds = 0;   // worker half and codec
  double pull_seconds = 0;     // reading replies into the vector
  double push_seconds = 0;     // from Push until the last segment's reply
  std::optional<RoundSums> round;  // rules that squeeze: where the push's round was measured
};

// A segment's first answer to a push or skip: from then on the server has it for good.
struct SegmentAnswer {
  uint32_t segment = 0;
  uint64_t sequence = 0;
  uint64_t ticket = 0;
  uint64_t version = 0;  // of the segment, as the server said with it
  // "applied", "duplicate", "discarded", "skipped", "late", or "pending": noted for a round. The
  // name of a v1::ReplyHeader::Result, in small letters.
  std::string result;
};

// Bytes of whole messages since the start; uncompressed: 4 bytes an element.
struct Traffic {
  uint64_t push_bytes = 0, push_uncompressed_bytes = 0;  // trainable segments' pushes
  uint64_t pull_bytes = 0, pull_uncompressed_bytes = 0;  // trainable segments' replies
  uint64_t statistics_push_bytes = 0;
};

struct ParameterClientOptions {
  std::vector<std::string> servers;  // "host:port", in shard order
  Credentials credentials;
  Schema schema;
  ShardPlan plan;
  Schedule schedule;  // the rate at which the server will apply a push
  // What every server is told first: contract, job, model; worker slot and
  // incarnation, or `reader`.
  v1::HelloRequest hello;
  std::string rule;
  WorkerHalfSettings half;
  std::optional<SqueezeReplicaOptions> squeeze;  // as PushEncoderOptions::squeeze
  std::string push_codec = "none";
  std::string reply_codec = "none";  // not every one in synchronous modes
  CodecSettings codec_settings;
  uint64_t seed = 0;  // the job's
  bool synchronous = false;
  // Members of rounds come and go: a round that does not close has a slow member, not a dead
  // one, so that it is waited for.
  bool views = false;
  uint32_t statistics_interval_steps = 10;
  double connect_seconds = 60;  // bound on every wait for a server
  uint32_t window = 3;          // segments in flight to one server
  // Once true, waits for servers that do not answer end with CANCELLED. Null: never.
  const std::atomic<bool>* stop = nullptr;
  // Called on the client's thread when every segment has acknowledged a push. May
  // be empty; must not call the client.
  std::function<void(const PushFigures&)> acknowledged;
  // The same, for each segment of a push or skip by itself, once. May be empty.
  std::function<void(const SegmentAnswer&)> answered;
};

// Whether the rule keeps momentum at the worker and the learning rate jumps.
bool RepairsSteps(const ParameterClientOptions& options);

// Of the client's pushes. A reader pushes nothing: it keeps neither momentum nor error.
PushEncoderOptions MakeEncoderOptions(const ParameterClientOptions& options);

// The gradient of one step, final: clipped, and known to be finite or not.
struct StepGradient {
  uint64_t ticket = 0;
  // Further tickets that are consumed once the push is acknowledged (elastic rules).
  std::vector<uint64_t> earlier;
  uint64_t round = 0;  // synchronous modes: the step
  // [trainable_elements]. The worker half works in place and messages point into
  // it: elements may be read and written again once the gate has let them through.
  float* gradient = nullptr;
  // [statistic_elements], of this step's batch; copied. Null: none.
  const float* statistics = nullptr;
  bool finite = true;  // false: every trainable segment is told to skip the ticket
  // In full precision, with all that compression has kept back: before a polite leave.
  bool fold = false;
};

enum class Parameters {
  kMaster,  // the server's own
  kAsSent,  // as the rule sends them to a worker that computes a gradient
};

// One thread may call everything but traffic() and channel(), which any may.
// Errors: CANCELLED (stop), ABORTED (a newer incarnation of this worker runs),
// INVALID_ARGUMENT and FAILED_PRECONDITION (this program and the server do not
// belong together), UNAVAILABLE (a server did not answer within connect_seconds,
// or came back without its state), DATA_LOSS (replies damaged again and again).
// Each names shard and address. After an error only the destructor is of use.
class ParameterClient : public ParameterGate {
 public:
  // Says hello to every server, waiting for those that are not up yet.
  static absl::StatusOr<std::unique_ptr<ParameterClient>> Connect(
      const ParameterClientOptions& options);
  ~ParameterClient() override;

  // Brings `values` [schema.elements()] for segments that no one has brought.
  virtual absl::Status Initialise(absl::Span<const float> values) = 0;
  // Readers: waits until workers have brought every segment's first values.
  virtual absl::Status AwaitInitialised() = 0;
  // Counts a finite step's statistics [statistic_elements] of which no Push tells. They
  // go out, averaged, with the next push after statistics_interval_steps of them.
  virtual void NoteStatistics(const float* statistics) = 0;
  // Fetches the whole vector. kAsSent renews what the servers take this worker
  // to hold.
  virtual absl::Status Pull(Parameters which) = 0;

  // Begins the exchange of a step and returns; first waits for the last one.
  virtual absl::Status Push(const StepGradient& step) = 0;
  // The gate: returns once these elements are those of the next step.
  absl::Status WaitFor(uint64_t begin, uint64_t elements) override = 0;
  // Returns once the last push is acknowledged by every segment.
  virtual absl::Status Finish() = 0;

  // To be called before the gradient of this ticket is computed, and when the lead says
  // that others wait (LeadClient::repair_ticket). Where the learning rate jumps between
  // what was pushed and this ticket, and the rule keeps momentum at the worker: finishes
  // the last push, brings the momentum to the servers, waits until every worker has, and
  // takes the parameters to go on with. Else nothing. DEADLINE_EXCEEDED, naming whose
  // momentum is missing, after connect_seconds; CANCELLED.
  virtual absl::Status Repair(uint64_t ticket) = 0;

  // Rounds whose members may come and go. To be called with the round of a ticket that is the
  // first, or does not follow the last one, or after late(), before its gradient is
  // computed: waits until every segment has reached the round, taking no part in those before
  // it, and holds what they have come to. Returns the highest round that a segment has open:
  // where it is beyond `round`, the ticket's round is over, and the worker is to go on there.
  virtual absl::StatusOr<uint64_t> EnterRound(uint64_t round) = 0;
  // Whether the last push came too late for some segment. Only while nothing is in flight.
  virtual bool late() const = 0;
  // Brings a view to every server. From any thread; does not insist: UNAVAILABLE,
  // DEADLINE_EXCEEDED where one does not answer at once.
  virtual absl::Status ChangeView(const v1::View& view) = 0;

  // The whole flat vector, running statistics last. Elements may be read once the
  // gate has let them through; all of them after Pull or Finish. Between steps
  // the caller may overwrite values for its own use until the next Pull(kAsSent), and
  // may not push before it: replies may be differences to what is there.
  virtual float* parameters() = 0;

  // The schedule clock of a segment as its server last said: the highest ticket that it
  // has seen. Only while nothing is in flight.
  virtual uint64_t clock(uint32_t segment) const = 0;

  // Seconds that WaitFor, Finish and Repair have blocked since the last call of this.
  virtual double TakeWaitSeconds() = 0;
  // ||error|| / ||m||, m the worker's momentum where the rule has one, else this
  // gradient [trainable_elements]; 0 without compression. Only while nothing is
  // in flight; one block in 16 is looked at.
  virtual double ErrorFeedbackRatio(const float* gradient) const = 0;
  // What compression has not sent yet, [trainable_elements]; empty without. Only
  // while nothing is in flight.
  virtual absl::Span<const float> error() const = 0;

  virtual Traffic traffic() const = 0;
  virtual std::shared_ptr<grpc::Channel> channel(uint32_t shard) const = 0;

 protected:
  ParameterClient() = default;
};

}  // namespace foreshard
