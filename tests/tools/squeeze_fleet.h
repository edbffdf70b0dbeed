// Workers and one segment of an APMSqueeze job without network: each worker holds parameters,
// error and replica, contributes, and takes the replies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/core/random.h"
#include "gtest/gtest.h"
#include "kernels/codecs/codec.h"
#include "server/segment.h"
#include "tools/simulate/round_reply.h"
#include "worker/squeeze_replica.h"

namespace foreshard {

struct SqueezeFleetOptions {
  uint64_t elements = 1000;
  uint32_t block_elements = 100;
  uint32_t workers = 3;    // the first view
  uint32_t slots = 8;
  uint64_t freeze_round = 5;
  uint64_t fold_rounds = 1000000;
  uint64_t measure_rounds = 16;
  CodecId codec = CodecId::kOneBit;
  bool compress_gradients = false;
  bool bias_correction = false;
  float beta1 = 0.9f;
  float beta2 = 0.99f;
  float eta = 0.01f;
  float weight_decay = 0;
};

class SqueezeFleet {
 public:
  struct Worker {
    std::unique_ptr<SqueezeReplica> replica;
    std::vector<float> parameters, error;
    uint64_t incarnation = 1;
    uint64_t sequence = 0;
    uint64_t held_version = 0;
    bool member = false;
  };

  explicit SqueezeFleet(const SqueezeFleetOptions& options) : options(options), workers(options.slots) {
    SegmentOptions segment_options;
    segment_options.plan.elements = options.elements;
    for (uint64_t at = 0; at < options.elements; at += options.block_elements) {
      const auto length = std::min<uint64_t>(options.block_elements, options.elements - at);
      segment_options.plan.blocks.push_back({at, static_cast<uint32_t>(length), true});
    }
    segment_options.rule = {.rule = "apmsqueeze",
                            .weight_decay = options.weight_decay,
                            .max_workers = options.slots,
                            .beta1 = options.beta1,
                            .beta2 = options.beta2,
                            .bias_correction = options.bias_correction,
                            .compress_gradients = options.compress_gradients};
    segment_options.schedule = {.learning_rate = options.eta, .batches_per_epoch = 1000000};
    segment_options.synchronous = true;
    segment_options.members = options.workers;
    segment_options.squeeze = {.freeze_round = options.freeze_round,
                               .fold_rounds = options.fold_rounds,
                               .measure_rounds = options.measure_rounds,
                               .codec = options.codec};
    segment_options.seed = 17;
    plan = segment_options.plan;
    this->segment_options = segment_options;
    segment = Segment::Create(segment_options).value();
    std::vector<float> values(options.elements);
    for (size_t k = 0; k < values.size(); ++k) values[k] = static_cast<float>(RandomNormal(1, 1, k));
    Send({.kind = EventKind::kInitialise}, AsBytes(values));
    for (uint32_t w = 0; w < options.workers; ++w) Start(w);
  }

  static ByteSpan AsBytes(const std::vector<float>& values) {
    return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)};
  }

  // Admits and applies; the reply is in `reply`. What was refused is in `status`.
  Outcome Send(Event event, ByteSpan payload) {
    event.payload = {absl::MakeConstSpan(&payload, 1), payload.size()};
    status = segment->CheckPayload(event);
    if (status.ok()) status = segment->Admit(&event);
    buffer.resize(segment->max_reply_bytes());
    reply = {.data = buffer.data()};
    if (!status.ok()) return {};
    event.number = ++numbers;
    AppendRecord(event, &records);
    return segment->Apply(event, &reply);
  }

  // A new start of this slot: reads what the segment has.
  void Start(uint32_t w) {
    Worker& worker = workers[w];
    worker.replica = std::make_unique<SqueezeReplica>(
        SqueezeReplicaOptions{.codec = codecs.Find(options.codec),
                              .seed = segment_options.seed,
                              .beta1 = options.beta1,
                              .weight_decay = options.weight_decay,
                              .compress_gradients = options.compress_gradients,
                              .trainable_elements = options.elements,
                              .segments = 1});
    worker.parameters.assign(options.elements, 0);
    worker.error.assign(options.elements, 0);
    worker.member = true;
    worker.sequence = 0;
    Take(w, Send({.kind = EventKind::kRead, .worker = w, .incarnation = worker.incarnation,
                  .held_version = worker.held_version}, {}));
  }

  void Take(uint32_t w, const Outcome& outcome, ByteSpan sent = {}, const PushPlace& place = {}) {
    ASSERT_TRUE(status.ok()) << status;
    if (outcome.result == Result::kPending) return;
    Worker& worker = workers[w];
    const ByteSpan piece(buffer.data(), reply.bytes);
    const absl::Status taken = worker.replica->Take(
        plan, ToRoundReply(outcome, reply.parts),
        {absl::MakeConstSpan(&piece, 1), piece.size()}, place, sent, worker.parameters.data(),
        worker.error.data());
    ASSERT_TRUE(taken.ok()) << taken;
    worker.held_version = outcome.version;
    if (reply.parts != 0) last_parts = reply.parts;
  }

  // Encodes w's contribution with this gradient; `full`: in full precision whatever the phase.
  std::vector<uint8_t> Encode(uint32_t w, std::vector<float> gradient, bool full = false) {
    Worker& worker = workers[w];
    worker.replica->Transform(plan, gradient.data());
    const Codec& codec = full ? *codecs.Find(CodecId::kNone) : worker.replica->codec(plan);
    sent_codec = codec.id();
    std::vector<uint8_t> bytes(EncodedBytes(codec, plan.blocks));
    EncodeSegment(codec, plan.blocks, gradient.data(), worker.error.data(),
                  PushKey(segment_options.seed, plan.id, Place(w)), bytes.data());
    return bytes;
  }

  // Of w's next push.
  PushPlace Place(uint32_t w) const {
    return {.worker = w, .sequence = workers[w].sequence + 1, .round = workers[w].replica->round(plan)};
  }

  Outcome Push(uint32_t w, uint64_t round, const std::vector<uint8_t>& bytes) {
    Worker& worker = workers[w];
    const PushPlace place = Place(w);
    const Outcome outcome = Send(
        {.kind = EventKind::kPush, .codec = static_cast<uint8_t>(sent_codec), .worker = w,
         .incarnation = worker.incarnation, .sequence = ++worker.sequence, .ticket = round * 8 + w,
         .held_version = worker.held_version, .argument = round},
        bytes);
    if (status.ok()) Take(w, outcome, bytes, place);
    return outcome;
  }

  Outcome Contribute(uint32_t w, const std::vector<float>& gradient, bool full = false) {
    const uint64_t round = workers[w].replica->round(plan);
    return Push(w, round, Encode(w, gradient, full));
  }

  void Skip(uint32_t w) {
    Worker& worker = workers[w];
    Send({.kind = EventKind::kSkip, .worker = w, .incarnation = worker.incarnation,
          .sequence = ++worker.sequence, .held_version = worker.held_version,
          .argument = segment->open_round()}, {});
    ASSERT_TRUE(status.ok()) << status;
  }

  // The open round goes on without w.
  void Absent(uint32_t w) {
    Send({.kind = EventKind::kAbsent, .worker = w, .incarnation = workers[w].incarnation,
          .argument = segment->open_round() + 1}, {});
    ASSERT_TRUE(status.ok()) << status;
  }

  void Close() {
    Send({.kind = EventKind::kRoundClosed, .argument = segment->open_round()}, {});
    ASSERT_TRUE(status.ok()) << status;
  }

  void Fetch(uint32_t w) {
    Worker& worker = workers[w];
    Take(w, Send({.kind = EventKind::kRead, .worker = w, .incarnation = worker.incarnation,
                  .held_version = worker.held_version,
                  .argument = static_cast<uint64_t>(ReadMode::kRound)}, {}));
  }

  // The workers that are members, from these rounds on.
  void ChangeView(const std::vector<Member>& members) {
    std::string payload;
    for (const Member& member : members) AppendMember(member, &payload);
    Send({.kind = EventKind::kViewChange, .argument = segment->view() + 1},
         ByteSpan(reinterpret_cast<const uint8_t*>(payload.data()), payload.size()));
    ASSERT_TRUE(status.ok()) << status;
  }

  const SqueezeRule& rule() const { return *const_cast<UpdateRule&>(segment->rule()).AsSqueeze(); }

  SqueezeFleetOptions options;
  CodecSet codecs;
  SegmentOptions segment_options;
  SegmentPlan plan;
  std::unique_ptr<Segment> segment;
  std::vector<Worker> workers;
  std::vector<uint8_t> buffer;
  Reply reply;
  absl::Status status;
  CodecId sent_codec = CodecId::kNone;
  uint32_t last_parts = 0;
  std::string records;
  uint64_t numbers = 0;
};

}  // namespace foreshard
