// What the parameter client says to the servers about each segment: makes the
// messages of an operation (read, push, skip, initialise, repair), in the order in which
// the next forward pass needs the replies, and reads those into the vector.
// Owns the per-segment protocol state: sequence numbers, held versions, clocks.
// Internal to worker/parameter_client.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/core/bytes.h"
#include "common/core/steady_time.h"
#include "kernels/codecs/codec.h"
#include "worker/buffer_pool.h"
#include "worker/device_push_encoder.h"
#include "worker/exchange_calls.h"
#include "worker/parameter_client.h"
#include "worker/push_encoding.h"
#include "worker/reply_reader.h"

namespace foreshard {

// A server that answers now.
struct ServerNow {
  uint64_t incarnation = 0;
  // It went on from a checkpoint without what came after it, as is seen for the first time.
  bool lost = false;
};

class SegmentExchange : public ExchangeHandler {
 public:
  struct Operation {
    v1::ExchangeHeader::Kind kind = v1::ExchangeHeader::READ;
    std::vector<uint32_t> segments;
    bool lookahead = false;         // READ
    uint64_t ticket = 0;            // PUSH, SKIP; REPAIR: the step of the rate
    std::vector<uint64_t> earlier;  // acknowledged with it
    uint64_t round = 0;
    bool absent = false;            // FETCH: takes no part in rounds up to this one
    bool fold = false;              // PUSH: in full precision, with all that was kept back
    float* gradient = nullptr;      // PUSH: trainable segments; null: on the device
    const float* statistics = nullptr;  // PUSH: statistics segments, to be sent as they are
    const float* values = nullptr;  // INITIALISE: the whole vector
  };

  // `options` outlive this. `who_answers` is asked, on the thread that ExchangeCalls has for it, after a refusal: that server
  // now, which has been said hello to. An error: it is not to be gone on with.
  SegmentExchange(const ParameterClientOptions& options,
                  std::vector<uint64_t> server_incarnations,
                  std::function<absl::StatusOr<ServerNow>(uint32_t shard)> who_answers);

  // What this server and the worker have agreed on; at first the newest that the worker speaks.
  // Thread-safe.
  void set_protocol(uint32_t shard, uint32_t protocol) { protocols_[shard] = protocol; }

  // Where gradients stay on a device: gives it the pushes of the step that it is about to
  // compute, before Begin of the PUSH, or of a SKIP in its place. Only while no operation is under
  // way. Nothing elsewhere.
  absl::Status Prepare(const StepGradient& coming, std::optional<double> clip_norm);
  // Only while no operation is under way. Then give ExchangeCalls a Start.
  void Begin(Operation operation);
  // Payload bytes that the operation under way will send.
  uint64_t PayloadBytes() const;

  // Rules with a worker half: the segments to be repaired before anything is pushed
  // beyond this step of the rate, since their clock is before it, or their share of
  // this worker's momentum is and has been left behind.
  std::vector<uint32_t> Unrepaired(uint64_t step) const;
  // Rounds, as the servers last said; only while no operation is under way. The highest
  // that a trainable segment has open, and the segments that have an earlier one open.
  uint64_t open_round() const;
  std::vector<uint32_t> Behind(uint64_t round) const;
  // Whether the last push came too late for some segment.
  bool late() const;
  // Of the last REPAIR: the segments that have to be asked again, and the workers that
  // they wait for, as far as the servers have said.
  std::vector<uint32_t> pending_repairs() const;
  std::set<uint32_t> missing_workers() const;

  // Blocks until the elements are ready, or all of the operation is done.
  absl::Status WaitFor(uint64_t begin, uint64_t elements);
  absl::Status WaitDone();
  double TakeWaitSeconds();

  float* parameters() { return parameters_.data(); }
  uint64_t clock(uint32_t segment) const;
  double ErrorFeedbackRatio(const float* gradient) const;
  absl::Span<const float> error() const { return encoder_->error(); }
  bool keeps_error() const { return encoder_->keeps_error(); }
  Traffic traffic() const;

  // ExchangeHandler.
  std::optional<Outgoing> Next(const std::vector<bool>& room) override;
  absl::StatusOr<FollowUp> Received(uint32_t token, const grpc::ByteBuffer& reply) override;
  absl::StatusOr<std::optional<grpc::ByteBuffer>> Refused(uint32_t token, const absl::Status& refusal) override;
  void Failed(const absl::Status& status) override;

 private:
  struct SegmentState {
    const SegmentPlan* plan = nullptr;
    uint64_t sequence = 0;      // of the last PUSH or SKIP
    uint64_t answered = 0;      // the sequence of the last one that the server has answered
    uint64_t sent_to = 0;       // the server's incarnation when the last message was made, or made again
    uint64_t held_version = 0;  // of the last parameters read
    // They are those that the server sent this worker, to which differences may be added.
    bool as_sent = false;
    uint64_t clock = 0;         // highest ticket the server has said
    uint64_t round = 0;         // the open one, as the server last said
    // The server has lost what it knew: its parameters are to be read before anything is pushed.
    // Gradients from before are dropped, as what it was told is.
    bool lost = false;
    // The server's parameters hold this worker's momentum, at the rate of this ticket.
    bool has_share = false;
    uint64_t share_ticket = 0;
    // Of the push under way, for rules that compress rounds: should it come too late, the
    // encoder takes it back.
    ByteSpan sent;
    grpc::Slice sent_slice;
  };

  bool IsTrainable(const SegmentState& segment) const {
    return segment.plan->kind == TensorKind::kTrainable;
  }
  const Codec& PushCodec(const SegmentState& segment) const {
    return IsTrainable(segment) ? encoder_->codec(*segment.plan) : *plain_;
  }
  v1::ExchangeHeader Header(const SegmentState& segment, v1::ExchangeHeader::Kind kind) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a segment that is lost, in the place of a push or skip, or of a read.
  v1::ExchangeHeader ReadAnew(const SegmentState& segment) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the operation under way would change what a server knows of this worker's batches.
  bool Moves() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return operation_.kind == v1::ExchangeHeader::PUSH || operation_.kind == v1::ExchangeHeader::SKIP;
  }
  // What a push of the segment under way is told from others by.
  PushPlace Place(const SegmentState& segment) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<grpc::Slice> MakePayload(SegmentState& segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // No more messages: what has happened is what the computing thread's waits end with.
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasPayload(const SegmentState& segment) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool BringsShare(const SegmentState& segment, uint64_t step) {
    return segment.has_share && segment.share_ticket < step;
  }
  // Where this worker's share of momentum stands after an answer.
  void NoteShare(SegmentState& segment, const v1::ReplyHeader& header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Read(SegmentState& segment, const v1::ReplyHeader& header, const Payload& payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReadRound(SegmentState& segment, const v1::ReplyHeader& header,
                         const Payload& payload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // To the device, in place of parameters_.
  absl::Status ReadToDevice(const SegmentState& segment, const Codec& codec, const CodecKey& key,
                            const Payload& payload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // To be called when the answer to a push or skip has been read.
  void NoteAnswer(SegmentState& segment, const v1::ReplyHeader& header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteFigures(const SegmentState& segment, const v1::ReplyHeader& header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteMeasure(const v1::RoundMeasure& measure) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<RoundSums> TakeRoundSums() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MarkReady(uint32_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Await(const std::function<bool()>& ready);

  const ParameterClientOptions& options_;
  const std::function<absl::StatusOr<ServerNow>(uint32_t)> who_answers_;
  const CodecSet codecs_;
  const Codec* const plain_;
  const Codec* const reply_codec_;
  size_t trainable_segments_ = 0;
  std::vector<float> parameters_;
  const std::unique_ptr<PushEncoding> encoder_;
  DevicePushEncoder* const device_;  // encoder_, where gradients stay on a device; else null
  ReplyReader reader_;
  BufferPool pool_;

  std::vector<std::atomic<uint32_t>> protocols_;  // by shard

  // The protocol state; held while a message is made or read.
  mutable absl::Mutex mutex_;
  std::vector<uint64_t> server_incarnations_ ABSL_GUARDED_BY(mutex_);
  std::vector<SegmentState> segments_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::deque<uint32_t>> queued_ ABSL_GUARDED_BY(mutex_);  // by shard, rising
  Operation operation_ ABSL_GUARDED_BY(mutex_);
  SteadyTime began_ ABSL_GUARDED_BY(mutex_);
  bool late_ ABSL_GUARDED_BY(mutex_) = false;
  // Of the push under way: measures of its round.
  RoundTotals round_totals_ ABSL_GUARDED_BY(mutex_);
  PushFigures figures_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> pending_repairs_ ABSL_GUARDED_BY(mutex_);
  std::set<uint32_t> missing_workers_ ABSL_GUARDED_BY(mutex_);
  double lag_elements_ ABSL_GUARDED_BY(mutex_) = 0;
  double elements_ ABSL_GUARDED_BY(mutex_) = 0;
  double gap_squares_ ABSL_GUARDED_BY(mutex_) = 0;
  double gap_elements_ ABSL_GUARDED_BY(mutex_) = 0;
  double surprise_squares_ ABSL_GUARDED_BY(mutex_) = 0;

  // What the computing thread waits for.
  absl::Mutex ready_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  std::vector<uint8_t> ready_ ABSL_GUARDED_BY(ready_mutex_);
  size_t left_ ABSL_GUARDED_BY(ready_mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(ready_mutex_);
  double wait_seconds_ ABSL_GUARDED_BY(ready_mutex_) = 0;
  std::atomic<bool> all_ready_{true};

  std::atomic<uint64_t> push_bytes_{0}, push_plain_bytes_{0}, pull_bytes_{0}, pull_plain_bytes_{0},
      statistics_bytes_{0};
  // Last, so that it waits first: messages may point into the caller's memory.
  AliasGuard aliases_;
};

}  // namespace foreshard
