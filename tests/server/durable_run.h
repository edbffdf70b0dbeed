// A server's state machines, a run of theirs that nothing disturbed, and the same run with a
// journal and checkpoints on a storage that may go away at any moment.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/core/random.h"
#include "server/checkpoint_files.h"
#include "server/dealer.h"
#include "server/journal.h"
#include "server/recovery.h"
#include "tests/server/segment_harness.h"

namespace foreshard {

inline constexpr uint32_t kDurableWorkers = 3;
inline constexpr uint64_t kCheckpointEvery = 60;

inline const StateIdentity kDurableIdentity = {
    .protocol = 3, .shards = 1, .job = 0x0b, .schema = 0x5c, .plan = 0x91};

// Three segments and a dealer.
class Machines final : public RecoveryTarget {
 public:
  static Schema MakeSchema() { return Schema::Create({{"w", {25, 10}}, {"b", {50}}}).value(); }
  static ShardPlan MakePlan() {
    return ShardPlan::Create(MakeSchema(), {.segment_elements = 100, .block_elements = 50}).value();
  }

  Machines(const std::string& rule, bool synchronous)
      : dealer(DealerOptions{.batches_per_epoch = 40, .epochs = 9}) {
    const ShardPlan plan = MakePlan();
    for (const SegmentPlan& segment : plan.segments()) {
      SegmentOptions options = MakeSegmentOptions(rule, segment.elements, kDurableWorkers);
      options.plan = segment;
      options.synchronous = synchronous;
      options.members = synchronous ? kDurableWorkers : 0;
      options.squeeze = {.freeze_round = 5, .fold_rounds = 4, .measure_rounds = 2};
      segments.push_back(Segment::Create(options).value());
    }
  }

  absl::Status Perform(const Event& event) {
    if (event.segment == kDealerSegment) {
      const auto dealt = ToDealerEvent(event);
      if (!dealt.ok()) return dealt.status();
      dealer.Apply(*dealt);
      return absl::OkStatus();
    }
    return segments.at(event.segment)->Replay(event);
  }
  // Of a segment, or of the dealer.
  std::string Save(uint32_t machine) const {
    return machine == kDealerSegment ? dealer.Save() : segments[machine]->Save();
  }
  std::vector<uint32_t> machines() const override {
    std::vector<uint32_t> ids;
    for (const auto& segment : segments) ids.push_back(segment->plan().id);
    ids.push_back(kDealerSegment);
    return ids;
  }
  absl::Status Load(uint32_t machine, const std::string& saved) override {
    return machine == kDealerSegment ? dealer.Load(saved) : segments[machine]->Load(saved);
  }
  absl::Status Replay(const Event& event) override { return Perform(event); }

  std::vector<std::unique_ptr<Segment>> segments;
  Dealer dealer;
};

// Made once: every event, and every machine's state after it.
class UndisturbedRun {
 public:
  UndisturbedRun(const std::string& rule, bool synchronous, uint64_t events)
      : rule_(rule), synchronous_(synchronous), machines_(rule, synchronous) {
    for (const uint32_t id : machines_.machines()) states_[id][0] = machines_.Save(id);
    for (const auto& segment : machines_.segments) {
      Perform({.kind = EventKind::kInitialise, .segment = segment->plan().id}, CodecId::kNone,
              Values(*segment));
    }
    for (uint32_t w = 0; w < kDurableWorkers; ++w) {
      Perform(ToEvent({.kind = DealerEvent::Kind::kJoin, .worker = w}));
    }
    while (size() < events) {
      synchronous_ ? StepOfRounds() : Step();
    }
  }

  uint64_t size() const { return events_.size(); }
  // Numbered from 1.
  const Event& event(uint64_t number) const { return events_[number - 1]->event; }
  // What the machine's state was when events up to this number had taken effect.
  const std::string& StateAt(uint32_t machine, uint64_t number) const {
    return std::prev(states_.at(machine).upper_bound(number))->second;
  }
  std::unique_ptr<Machines> NewMachines() const { return std::make_unique<Machines>(rule_, synchronous_); }
  // Kinds of events in it.
  std::map<EventKind, int> kinds() const {
    std::map<EventKind, int> kinds;
    for (const auto& each : events_) ++kinds[each->event.kind];
    return kinds;
  }

 private:
  struct Recorded {
    Event event;
    std::vector<uint8_t> bytes;
    ByteSpan piece;
  };
  struct Place {
    uint64_t sequence = 0;
    uint64_t held_version = 0;
    bool has_read = false;
  };

  uint64_t Draw(uint64_t below) { return RandomBits(5, 5, ++draws_) % below; }
  std::vector<float> Values(const Segment& segment) {
    std::vector<float> values(segment.plan().elements);
    for (float& value : values) value = static_cast<float>(RandomNormal(6, 6, ++draws_));
    return values;
  }

  Outcome Perform(Event event, CodecId codec_id = CodecId::kNone, const std::vector<float>& values = {}) {
    auto recorded = std::make_unique<Recorded>();
    event.codec = static_cast<uint8_t>(codec_id);
    if (!values.empty()) {
      const auto& blocks = machines_.segments[event.segment]->plan().blocks;
      const Codec& codec = *FindCodec(codec_id);
      PushPlace place = {.worker = event.worker, .sequence = event.sequence};
      if (synchronous_) place.round = event.argument;
      recorded->bytes.resize(EncodedBytes(codec, blocks));
      EncodeSegment(codec, blocks, values.data(), nullptr, PushKey(0, event.segment, place),
                    recorded->bytes.data());
    }
    recorded->piece = recorded->bytes;
    if (!recorded->bytes.empty()) {
      event.payload = {absl::MakeConstSpan(&recorded->piece, 1), recorded->piece.size()};
    }
    Outcome outcome;
    if (event.segment == kDealerSegment) {
      machines_.dealer.Apply(ToDealerEvent(event).value());
    } else {
      Segment& segment = *machines_.segments[event.segment];
      EXPECT_TRUE(segment.CheckPayload(event).ok());
      const absl::Status admitted = segment.Admit(&event);
      EXPECT_TRUE(admitted.ok()) << admitted;
      std::vector<uint8_t> buffer(segment.max_reply_bytes());
      Reply reply = {.data = buffer.data()};
      outcome = segment.Apply(event, &reply);
    }
    event.number = size() + 1;
    recorded->event = event;
    events_.push_back(std::move(recorded));
    states_[event.segment][event.number] = machines_.Save(event.segment);
    return outcome;
  }

  void DealerStep(uint32_t worker) {
    const std::vector<uint64_t> held = machines_.dealer.held(worker);
    if (held.empty()) {
      Perform(ToEvent({.kind = DealerEvent::Kind::kFetch, .worker = worker, .argument = 2}));
    } else {
      Perform(ToEvent({.kind = DealerEvent::Kind::kComplete, .worker = worker, .argument = held.front()}));
    }
  }

  void Step() {
    const auto worker = static_cast<uint32_t>(Draw(kDurableWorkers));
    const auto id = static_cast<uint32_t>(Draw(machines_.segments.size()));
    Place& place = places_[{worker, id}];
    Event event = {.segment = id,
                   .worker = worker,
                   .incarnation = 1,
                   .ticket = size(),
                   .held_version = place.held_version};
    const uint64_t way = Draw(20);
    if (way == 0) return DealerStep(worker);
    if (way == 1) {
      event.kind = EventKind::kExpire;
      Perform(event);
      return;
    }
    Outcome outcome;
    if (way == 2 || !place.has_read) {
      event.kind = EventKind::kRead;
      place.has_read = true;
      outcome = Perform(event);
    } else {
      // Some come twice: those become resends.
      if (way != 3 || place.sequence == 0) ++place.sequence;
      event.kind = way == 4 ? EventKind::kSkip : EventKind::kPush;
      event.sequence = place.sequence;
      if (event.kind == EventKind::kSkip) {
        outcome = Perform(event);
      } else {
        outcome = Perform(event, way % 2 == 0 ? CodecId::kNone : CodecId::kOneBit,
                          Values(*machines_.segments[id]));
      }
    }
    place.held_version = outcome.version;
  }

  void StepOfRounds() {
    const auto id = static_cast<uint32_t>(Draw(machines_.segments.size()));
    Segment& segment = *machines_.segments[id];
    const std::vector<uint32_t> missing = segment.MissingMembers();
    const uint32_t worker = missing[Draw(missing.size())];
    if (Draw(10) == 0) return DealerStep(worker);
    Event event = {.kind = Draw(15) == 0 ? EventKind::kSkip : EventKind::kPush,
                   .segment = id,
                   .worker = worker,
                   .incarnation = 1,
                   .sequence = ++places_[{worker, id}].sequence,
                   .ticket = size(),
                   .held_version = segment.version(),
                   .argument = segment.open_round()};
    if (event.kind == EventKind::kSkip) {
      Perform(event);
    } else {
      const std::vector<float> values = Values(segment);
      // Rules that squeeze ask for full precision before their freeze and at folds.
      const bool whole = FindRule(rule_)->squeezes ? segment.phase() == Phase::kFull || segment.folds() : Draw(2) == 0;
      Perform(event, whole ? CodecId::kNone : CodecId::kOneBit, values);
    }
    if (segment.RoundComplete()) {
      Perform({.kind = EventKind::kRoundClosed, .segment = id, .argument = segment.open_round()});
    }
  }

  const std::string rule_;
  const bool synchronous_;
  Machines machines_;
  std::vector<std::unique_ptr<Recorded>> events_;
  std::map<uint32_t, std::map<uint64_t, std::string>> states_;
  std::map<std::pair<uint32_t, uint32_t>, Place> places_;
  uint64_t draws_ = 0;
};

// The state as a start finds it.
struct Found {
  absl::Status status;
  std::unique_ptr<Machines> machines;
  uint64_t through = 0;  // number of the last event in it
  uint64_t replayed = 0;
  std::string checkpoint;  // its name; "": none
};

inline Found Recover(const Storage& storage, const UndisturbedRun& run) {
  Found found;
  found.machines = run.NewMachines();
  const absl::StatusOr<Recovered> recovered = Recover(storage, kDurableIdentity, found.machines.get());
  found.status = recovered.status();
  if (!found.status.ok()) return found;
  found.through = recovered->next_number - 1;
  found.replayed = recovered->replayed;
  found.checkpoint = recovered->checkpoint_name;
  return found;
}

// The run, from some event on, with a journal, and a checkpoint every kCheckpointEvery events
// whose states are taken one after the other while it goes on.
class DurableRun {
 public:
  DurableRun(Storage* storage, const UndisturbedRun& run, JournalMode mode,
             std::unique_ptr<Machines> machines)
      : storage_(storage), run_(run), mode_(mode), machines_(std::move(machines)) {}

  absl::Status Open(uint64_t incarnation) {
    auto journal = Journal::Open(
        storage_,
        {.mode = mode_, .identity = kDurableIdentity, .incarnation = incarnation, .file_bytes = 6000});
    if (!journal.ok()) return journal.status();
    journal_ = *std::move(journal);
    return absl::OkStatus();
  }
  uint64_t first_number() const { return journal_->first_number(); }
  Journal& journal() { return *journal_; }

  // One event; by one thread.
  void Do(uint64_t number) {
    ASSERT_TRUE(machines_->Perform(run_.event(number)).ok());
    Record(number);
    if (number % kCheckpointEvery == 0) BeginCheckpoint();
    if (writer_ != nullptr) AddToCheckpoint(number);
  }
  // Its second half, by any thread: a reply would follow now.
  void Record(uint64_t number) {
    journal_->Record(run_.event(number));
    if (!journal_->status().ok()) return;
    uint64_t before = acknowledged_;
    while (before < number && !acknowledged_.compare_exchange_weak(before, number)) continue;
  }
  // All events up to this one are.
  uint64_t acknowledged() const { return acknowledged_; }
  uint64_t checkpoints() const { return checkpoints_; }

 private:
  void BeginCheckpoint() {
    const auto file = journal_->Rotate();
    if (!file.ok()) return;
    auto writer = CheckpointWriter::Begin(storage_, {.identity = kDurableIdentity, .journal_file = *file},
                                          schema_, plan_);
    if (!writer.ok()) return;
    writer_ = *std::move(writer);
    added_ = 0;
  }
  void AddToCheckpoint(uint64_t number) {
    const uint32_t id = machines_->machines()[added_];
    const absl::Status added =
        id == kDealerSegment
            ? writer_->AddDealer(number, machines_->Save(id))
            : writer_->AddSegment(id, number, machines_->segments[id]->theta(), machines_->Save(id));
    if (added.ok() && ++added_ < machines_->machines().size()) return;
    // No checkpoint may be ahead of the journal.
    if (added.ok() && journal_->SyncThrough(number).ok()) {
      if (const auto committed = writer_->Commit(2); committed.ok()) {
        ++checkpoints_;
        journal_->RemoveBefore(committed->journal_file).IgnoreError();
      }
    }
    writer_ = nullptr;
  }

  Storage* const storage_;
  const UndisturbedRun& run_;
  const JournalMode mode_;
  const Schema schema_ = Machines::MakeSchema();
  const ShardPlan plan_ = Machines::MakePlan();
  std::unique_ptr<Machines> machines_;
  size_t added_ = 0;
  std::atomic<uint64_t> acknowledged_{0};
  uint64_t checkpoints_ = 0;
  std::unique_ptr<CheckpointWriter> writer_;
  // Last: the end of it is watched, by who asks for the above.
  std::unique_ptr<Journal> journal_;
};

}  // namespace foreshard
