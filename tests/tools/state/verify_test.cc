#include "tools/state/verify.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "tests/tools/state/stored_run.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class Verify : public StoredRunTest {
 protected:
  ShardReport Report(uint32_t shard) {
    const StoredRun run = Open();
    auto report = VerifyShard(run, run.shards[shard], &watch_);
    EXPECT_TRUE(report.ok()) << report.status();
    return *std::move(report);
  }
  // The newest file of this kind.
  std::string Newest(uint32_t shard, const std::string& prefix) {
    std::string newest;
    for (const auto& entry : fs::directory_iterator(absl::StrCat(state(), "/shard-", shard))) {
      const std::string name = entry.path().filename().string();
      if (name.rfind(prefix, 0) == 0) newest = std::max(newest, entry.path().string());
    }
    return newest;
  }
};

TEST_F(Verify, WholeInBothModes) {
  for (const char* rule : {"dana_zero", "ssgd"}) {
    SCOPED_TRACE(rule);
    shards_.clear();
    fs::remove_all(folder_);
    Make(StoredJobOf(rule));
    for (auto& shard : shards_) {
      shard->Push(6);
      shard->Checkpoint(6);
      shard->Push(4);
      shard->Checkpoint(10);
      shard->Start(2);
      shard->Push(3);
    }
    // Servers are running: nothing of this needs the folders for itself.
    for (uint32_t shard = 0; shard < 2; ++shard) {
      const ShardReport report = Report(shard);
      EXPECT_FALSE(report.damaged()) << ReportText(report);
      ASSERT_EQ(report.checkpoints.size(), 2u);
      EXPECT_EQ(report.checkpoints[1].manifest->about.step, 10u);
      EXPECT_GT(report.checkpoints[1].bytes, 0u);
      EXPECT_EQ(report.journal.last_number, shards_[shard]->last());
      EXPECT_GT(report.journal.first_number, 1u);
      EXPECT_EQ(report.journal.events, report.journal.last_number - report.journal.first_number + 1);
      EXPECT_TRUE(report.journal.torn.empty());
      EXPECT_THAT(ReportText(report), HasSubstr(absl::StrCat("events ", report.journal.first_number, " to ")));
      EXPECT_FALSE(ReportJson(report)["damaged"].get<bool>());
      EXPECT_EQ(ReportJson(report)["journal"]["last_number"], shards_[shard]->last());
    }
  }
}

TEST_F(Verify, WhatMayBeMissingIsToldAndIsNoDamage) {
  Make(StoredJob());
  for (auto& shard : shards_) shard->Push(5);
  End();
  EXPECT_EQ(Report(0).lost, "");
  Describe(0, [](v1::RunDescription* description) { description->set_watched(true); });
  const ShardReport report = Report(0);
  EXPECT_FALSE(report.damaged());
  EXPECT_THAT(report.lost, HasSubstr("the journal had failed"));
  EXPECT_THAT(ReportText(report), HasSubstr(report.lost));
  EXPECT_EQ(ReportJson(report)["lost"], report.lost);
}

TEST_F(Verify, ATornEndIsToldAndIsNoDamage) {
  Make(StoredJob());
  shards_[0]->Push(5);
  const uint64_t last = shards_[0]->last();
  const std::string file = Newest(0, "journal.");
  fs::resize_file(file, fs::file_size(file) - 3);
  const ShardReport report = Report(0);
  EXPECT_FALSE(report.damaged()) << ReportText(report);
  ASSERT_EQ(report.journal.torn.size(), 1u);
  EXPECT_EQ(report.journal.last_number, last - 1);
  EXPECT_THAT(ReportText(report), HasSubstr("torn end"));
  EXPECT_GT(ReportJson(report)["journal"]["torn"][0]["offset"].get<uint64_t>(), 88u);
  shards_.clear();
}

TEST_F(Verify, AFlippedBitInTheJournalIsNamedWithFileAndOffset) {
  Make(StoredJob());
  shards_[1]->Push(5);
  const std::string file = Newest(1, "journal.");
  FlipBit(file, fs::file_size(file) / 2);
  const ShardReport report = Report(1);
  EXPECT_TRUE(report.damaged());
  EXPECT_THAT(std::string(report.journal.status.message()), HasSubstr("journal.0000000001, offset "));
  EXPECT_THAT(ReportText(report), HasSubstr("DAMAGED"));
  EXPECT_FALSE(Report(0).damaged());
}

TEST_F(Verify, AFlippedBitInACheckpointIsNamed) {
  Make(StoredJob());
  shards_[0]->Push(5);
  const std::string older = shards_[0]->Checkpoint(5);
  shards_[0]->Push(2);
  const std::string newer = shards_[0]->Checkpoint(7);
  for (const char* file : {"/state.bin", "/parameters-00001-of-00002.safetensors", "/manifest.json"}) {
    SCOPED_TRACE(file);
    const std::string path = state() + "/shard-0/" + newer + file;
    FlipBit(path, fs::file_size(path) / 2);
    const ShardReport report = Report(0);
    EXPECT_TRUE(report.damaged());
    ASSERT_EQ(report.checkpoints.size(), 2u);
    EXPECT_TRUE(report.checkpoints[0].status.ok());
    EXPECT_FALSE(report.checkpoints[1].status.ok());
    EXPECT_THAT(std::string(report.checkpoints[1].status.message()), HasSubstr(newer));
    // The older one and the journal are enough.
    EXPECT_TRUE(report.recovery.ok()) << report.recovery;
    FlipBit(path, fs::file_size(path) / 2);
  }
  EXPECT_FALSE(Report(0).damaged());
}

TEST_F(Verify, AMissingJournalFileIsDamage) {
  Make(StoredJob());
  shards_[0]->Push(5);
  shards_[0]->Checkpoint(5);
  shards_[0]->Push(2);
  End();
  fs::remove(Newest(0, "journal."));
  const ShardReport report = Report(0);
  EXPECT_TRUE(report.damaged());
  EXPECT_FALSE(report.recovery.ok());
}

// durability.on_failure: continue leaves a journal that ends early, a checkpoint that stands alone,
// and the journal of the next start.
// `finished`: it was the next file that could not be begun.
class VerifyFailed : public Verify, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Finished, VerifyFailed, ::testing::Bool());

TEST_P(VerifyFailed, JournalsAreNoDamage) {
  Make(StoredJob());
  for (auto& shard : shards_) shard->Push(5);
  const uint64_t last = shards_[0]->last();
  End();
  const std::string file = Newest(0, "journal.");
  if (!GetParam()) fs::resize_file(file, fs::file_size(file) - kJournalMarkBytes);
  const StoredRun run = Open();
  const auto machines = ReplayRun(run, &watch_);
  ASSERT_TRUE(machines.ok()) << machines.status();
  const StateDirectory& shard = run.shards[0];
  constexpr uint64_t kAlone = 1000;
  {
    const auto storage = OpenStorage(shard.folder).value();
    auto writer = CheckpointWriter::Begin(storage.get(), {.identity = shard.identity, .incarnation = 1}, run.schema,
                                          run.plan)
                      .value();
    for (const auto& segment : (*machines)[0]->segments()) {
      ASSERT_TRUE(writer->AddSegment(segment->plan().id, kAlone, segment->theta(), segment->Save()).ok());
    }
    ASSERT_TRUE(writer->AddDealer(kAlone, (*machines)[0]->dealer()->Save()).ok());
    ASSERT_TRUE(writer->Commit(2).ok());
    const auto journal = Journal::Open(storage.get(), {.identity = shard.identity, .incarnation = 9,
                                                       .least_number = kAlone + 1}).value();
    Event join = ToEvent({.kind = DealerEvent::Kind::kJoin, .worker = 1});
    join.number = journal->first_number();
    journal->Record(join);
    ASSERT_TRUE(journal->status().ok());
  }
  const ShardReport report = Report(0);
  EXPECT_FALSE(report.damaged()) << ReportText(report);
  ASSERT_EQ(report.journal.gaps.size(), 1u);
  EXPECT_EQ(report.journal.gaps[0], std::pair(last + 1, kAlone));
  EXPECT_EQ(report.journal.last_number, kAlone + 1);
  EXPECT_THAT(ReportText(report), HasSubstr(absl::StrCat("without ", last + 1, " to 1000")));
}

TEST_F(Verify, EndsWhenAskedTo) {
  class Impatient final : public WorkWatch {
   public:
    bool Proceed(const std::string&, uint64_t) override { return ++asked_ < 4; }
    int asked_ = 0;
  } impatient;
  Make(StoredJob());
  shards_[0]->Push(5);
  const StoredRun run = Open();
  EXPECT_TRUE(absl::IsCancelled(VerifyShard(run, run.shards[0], &impatient).status()));
  EXPECT_EQ(impatient.asked_, 4);
}

}  // namespace
}  // namespace foreshard
