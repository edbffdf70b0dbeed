// State directories on a real disk, as servers would have left them: made here event by event
// with Journal, CheckpointWriter and the machines, so that what is in them is known to the bit.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/core/random.h"
#include "common/net/job_parts.h"
#include "common/net/job_spec.h"
#include "gtest/gtest.h"
#include "server/checkpoint_files.h"
#include "server/journal.h"
#include "tools/state/replay.h"
#include "tools/state/reshard.h"
#include "tools/state/state_directory.h"

namespace foreshard {

// Never ends anything.
class Unwatched final : public WorkWatch {
 public:
  bool Proceed(const std::string&, uint64_t) override { return true; }
};

inline Schema SmallSchema() {
  return Schema::Create({{"conv.weight", {8, 3, 3, 4}, TensorKind::kTrainable, true},
                         {"conv.bias", {8}, TensorKind::kTrainable, false},
                         {"dense.weight", {10, 200}, TensorKind::kTrainable, true},
                         {"bn.running_mean", {8}, TensorKind::kStatistic, false}})
      .value();
}

inline v1::JobSpec StoredJob(const std::vector<std::string>& overrides = {}) {
  const auto job = ParseJobSpec(
      "name: 'stored' seed: 3 model { name: 'synthetic' elements: 2304 } "
      "data { format: 'synthetic' examples: 1000 } "
      "training { epochs: 9 batch_size: 10 workers: 2 max_workers: 3 } update { rule: 'dana_zero' momentum: 0.9 } "
      "schedule { learning_rate: 0.05 } servers { shards: 2 segment_elements: 1000 } "
      "compression { block_elements: 256 }",
      "the test's job", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

inline v1::JobSpec StoredJobOf(const std::string& rule) {
  return StoredJob({absl::StrCat("update.rule=", rule), rule == "adam" ? "update.momentum=" : "update.momentum=0.9"});
}

// One server.
class StoredShard {
 public:
  StoredShard(const StoredRun& run, uint32_t shard, const std::string& folder)
      : run_(run), folder_(folder), storage_(OpenStorage(folder).value()),
        machines_(ShardMachines::Create(run, shard).value()) {
    const v1::RunDescription description = DescribeRun(run.job, run.schema, run.plan, run.train_examples, shard);
    EXPECT_TRUE(WriteRunDescription(storage_.get(), description).ok());
    identity_ = IdentityOf(description);
    Start(1);
    for (const auto& segment : machines_->segments()) {
      Perform({.kind = EventKind::kInitialise, .segment = segment->plan().id}, Values(*segment));
    }
    if (machines_->dealer() != nullptr) {
      for (uint32_t worker = 0; worker < 2; ++worker) {
        Event join = ToEvent({.kind = DealerEvent::Kind::kJoin, .worker = worker});
        join.incarnation = 11 + worker;
        Perform(join);
      }
    }
  }

  // A start of the server: a journal file of its own.
  void Start(uint64_t incarnation) {
    journal_ = nullptr;
    auto journal = Journal::Open(storage_.get(), {.identity = identity_, .incarnation = incarnation});
    ASSERT_TRUE(journal.ok()) << journal.status();
    journal_ = *std::move(journal);
    EXPECT_EQ(journal_->first_number(), last_ + 1);
  }

  // So many pushes to each segment, by workers in turn, and a batch dealt and completed each time.
  void Push(uint64_t times) {
    for (uint64_t k = 0; k < times; ++k) {
      const auto worker = static_cast<uint32_t>(pushes_++ % 2);
      for (const auto& segment : machines_->segments()) PushTo(segment->plan().id, worker, true);
      if (machines_->dealer() == nullptr) continue;
      Perform(ToEvent({.kind = DealerEvent::Kind::kFetch, .worker = worker, .argument = 1}));
      const std::vector<uint64_t> held = machines_->dealer()->held(worker);
      if (held.empty()) continue;
      Perform(ToEvent({.kind = DealerEvent::Kind::kComplete, .worker = worker, .argument = held.front()}));
    }
  }

  void Stop() { Perform(ToEvent({.kind = DealerEvent::Kind::kStop})); }

  // `close`: a round that is complete is closed, as a server that lives does.
  void PushTo(uint32_t id, uint32_t worker, bool close) {
    const Segment& segment = *machines_->Find(id);
    const bool synchronous = machines_->options(id).synchronous;
    // A round takes one push of each.
    if (synchronous) worker = segment.MissingMembers().front();
    Event event = {.kind = EventKind::kPush,
                   .segment = id,
                   .worker = worker,
                   .incarnation = 1,
                   .sequence = ++sequences_[{id, worker}],
                   .ticket = pushes_,
                   .held_version = synchronous ? segment.version() : segment.version_sent(worker),
                   .argument = synchronous ? segment.open_round() : 0};
    if (event.sequence == 1 && !synchronous) {
      Perform({.kind = EventKind::kRead, .segment = id, .worker = worker, .incarnation = 1});
      event.held_version = segment.version();
    }
    Perform(event, Values(segment));
    if (close && synchronous && segment.RoundComplete()) {
      Perform({.kind = EventKind::kRoundClosed, .segment = id, .argument = segment.open_round()});
    }
  }

  // States are taken one after the other while events go on.
  std::string Checkpoint(uint64_t step, bool removes = true) {
    const uint64_t file = journal_->Rotate().value();
    auto writer = CheckpointWriter::Begin(
        storage_.get(), {.identity = identity_, .incarnation = 1, .step = step, .epoch = 1, .journal_file = file},
        run_.schema, run_.plan);
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (const auto& segment : machines_->segments()) {
      const uint32_t id = segment->plan().id;
      EXPECT_TRUE((*writer)->AddSegment(id, last_, segment->theta(), segment->Save()).ok());
      PushTo(machines_->segments().front()->plan().id, static_cast<uint32_t>(pushes_++ % 2), true);
    }
    if (machines_->dealer() != nullptr) {
      EXPECT_TRUE((*writer)->AddDealer(last_, machines_->dealer()->Save()).ok());
    }
    EXPECT_TRUE(journal_->SyncThrough(last_).ok());
    const auto committed = (*writer)->Commit(2);
    EXPECT_TRUE(committed.ok()) << committed.status();
    if (removes) {
      EXPECT_TRUE(journal_->RemoveBefore(committed->journal_file).ok());
    }
    return committed->name;
  }

  // The server ends: its folder is free.
  void End() {
    journal_ = nullptr;
    storage_ = nullptr;
  }

  const std::string& folder() const { return folder_; }
  const ShardMachines& machines() const { return *machines_; }
  uint64_t last() const { return last_; }

 private:
  std::vector<float> Values(const Segment& segment) {
    std::vector<float> values(segment.plan().elements);
    for (float& value : values) value = static_cast<float>(RandomNormal(7, segment.plan().id, ++draws_));
    return values;
  }
  void Perform(Event event, const std::vector<float>& values = {}) {
    const ByteSpan piece(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float));
    if (!values.empty()) event.payload = {absl::MakeConstSpan(&piece, 1), piece.size()};
    event.number = ++last_;
    const absl::Status performed = machines_->Replay(event);
    ASSERT_TRUE(performed.ok()) << performed;
    journal_->Record(event);
    ASSERT_TRUE(journal_->status().ok()) << journal_->status();
  }

  const StoredRun& run_;
  const std::string folder_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<ShardMachines> machines_;
  StateIdentity identity_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> sequences_;
  uint64_t last_ = 0, draws_ = 0, pushes_ = 0;
  std::unique_ptr<Journal> journal_;
};

// A folder of the test's own, with shard-0, shard-1 ... of a run.
class StoredRunTest : public ::testing::Test {
 protected:
  StoredRunTest() { std::filesystem::remove_all(folder_); }
  ~StoredRunTest() override {
    shards_.clear();
    std::filesystem::remove_all(folder_);
  }

  void Make(const v1::JobSpec& job, const Schema& schema = SmallSchema()) {
    run_ = PlanRun(job, schema, 1000).value();
    for (uint32_t shard = 0; shard < job.servers().shards(); ++shard) {
      shards_.push_back(std::make_unique<StoredShard>(run_, shard, absl::StrCat(state(), "/shard-", shard)));
    }
  }
  std::string state() const { return folder_ + "/state"; }
  StoredRun Open() const {
    auto run = OpenRun({state()}, Shards::kAll);
    EXPECT_TRUE(run.ok()) << run.status();
    return *std::move(run);
  }
  void End() {
    for (auto& shard : shards_) shard->End();
  }
  // What the shard's run.textproto says, changed. While nobody has the folder.
  void Describe(uint32_t shard, const std::function<void(v1::RunDescription*)>& change) {
    const auto storage = OpenStorage(absl::StrCat(state(), "/shard-", shard)).value();
    v1::RunDescription description = *ReadRunDescription(*storage).value();
    change(&description);
    EXPECT_TRUE(WriteRunDescription(storage.get(), description).ok());
  }
  // The whole vector as the servers have it.
  std::vector<float> Vector() const {
    std::vector<float> values(run_.schema.elements());
    for (const auto& shard : shards_) {
      for (const auto& segment : shard->machines().segments()) {
        std::copy(segment->theta().begin(), segment->theta().end(), values.begin() + static_cast<ptrdiff_t>(segment->plan().begin));
      }
    }
    return values;
  }

  const std::string folder_ = absl::StrCat(::testing::TempDir(), "stored_run.", getpid());
  StoredRun run_;
  std::vector<std::unique_ptr<StoredShard>> shards_;
  Unwatched watch_;
};

// Changes one bit.
inline void FlipBit(const std::string& path, uint64_t offset) {
  std::FILE* file = std::fopen(path.c_str(), "r+b");
  ASSERT_NE(file, nullptr) << path;
  std::fseek(file, static_cast<long>(offset), SEEK_SET);
  const int byte = std::fgetc(file);
  ASSERT_NE(byte, EOF) << path;
  std::fseek(file, static_cast<long>(offset), SEEK_SET);
  std::fputc(byte ^ 4, file);
  std::fclose(file);
}

}  // namespace foreshard
