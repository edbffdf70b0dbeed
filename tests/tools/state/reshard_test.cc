#include "tools/state/reshard.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "server/shard_server.h"
#include "tests/tools/state/stored_run.h"
#include "tools/state/verify.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

class Reshard : public StoredRunTest {
 protected:
  // All that the servers have, as the run of so many servers.
  absl::StatusOr<Reshaped> Move(uint32_t servers) {
    const StoredRun from = Open();
    const auto machines = ReplayRun(from, &watch_);
    EXPECT_TRUE(machines.ok()) << machines.status();
    const auto source = MachinesSource::Open(*machines);
    EXPECT_TRUE(source.ok()) << source.status();
    v1::JobSpec job = from.job;
    job.mutable_servers()->set_shards(servers);
    const StoredRun to = PlanRun(job, from.schema, from.train_examples).value();
    const MovedState moved = {.run = &from, .machines = &*machines};
    return WriteRun(to, **source, &moved, output_, &watch_);
  }
  // What servers find that start on it.
  std::vector<std::unique_ptr<ShardMachines>> Found(size_t servers) {
    moved_ = OpenRun({output_}, Shards::kAll).value();
    EXPECT_EQ(moved_.shards.size(), servers);
    for (const StateDirectory& shard : moved_.shards) {
      const auto report = VerifyShard(moved_, shard, &watch_);
      EXPECT_TRUE(report.ok()) << report.status();
      EXPECT_FALSE(report->damaged()) << ReportText(*report);
    }
    auto machines = ReplayRun(moved_, &watch_);
    EXPECT_TRUE(machines.ok()) << machines.status();
    return *std::move(machines);
  }
  std::vector<float> VectorOf(const std::vector<std::unique_ptr<ShardMachines>>& shards) {
    std::vector<float> values(run_.schema.elements());
    const auto source = MachinesSource::Open(shards).value();
    EXPECT_TRUE(source->Read(0, absl::MakeSpan(values)).ok());
    return values;
  }

  const std::string output_ = folder_ + "/moved";
  StoredRun moved_;
};

TEST_F(Reshard, ParametersGoOverToTheBitAndTheDealerGoesOn) {
  Make(StoredJob());
  for (auto& shard : shards_) shard->Push(7);
  const auto moved = Move(3);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_FALSE(moved->states);
  EXPECT_THAT(moved->why_not, HasSubstr("segment 0 holds other elements"));
  EXPECT_TRUE(moved->dealer);
  EXPECT_EQ(moved->completed_tickets, 7u);
  const auto found = Found(3);
  EXPECT_EQ(VectorOf(found), Vector());
  EXPECT_EQ(found[0]->dealer()->completed_tickets(), 7u);
  EXPECT_EQ(found[0]->dealer()->joined_workers(), 0u);
  for (const auto& shard : found) {
    for (const auto& segment : shard->segments()) EXPECT_EQ(segment->version(), 0u);
  }
}

TEST_F(Reshard, WholeStatesGoOverWhereSegmentsAreTheSame) {
  const Schema schema = Schema::Create({{"w", {64, 64}, TensorKind::kTrainable, true}}).value();
  Make(StoredJob({"servers.segment_elements=1024"}), schema);
  for (auto& shard : shards_) shard->Push(7);
  const auto moved = Move(4);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_TRUE(moved->states) << moved->why_not;
  EXPECT_EQ(moved->why_not, "");
  const auto found = Found(4);
  for (const auto& before : shards_) {
    for (const auto& segment : before->machines().segments()) {
      const uint32_t id = segment->plan().id;
      EXPECT_EQ(found[moved_.plan.segments()[id].shard]->Save(id) == segment->Save(), true) << id;
    }
  }
  EXPECT_EQ(found[0]->dealer()->Save(), shards_[0]->machines().dealer()->Save());
  // Without it nobody would deal again what those workers have in hand.
  EXPECT_EQ(found[0]->lead().dealing(0), 11u);
  EXPECT_EQ(found[0]->lead().dealing(1), 12u);
  EXPECT_EQ(found[0]->lead().known(1), 12u);
  EXPECT_EQ(found[0]->lead().examples(0), 40u);
  EXPECT_EQ(found[0]->lead().examples(1), 30u);
}

// What the lead was told since the last checkpoint is in a file of its own.
TEST_F(Reshard, WhatTheLeadWasToldGoesOverToo) {
  Make(StoredJob());
  for (auto& shard : shards_) shard->Push(4);
  shards_[0]->Stop();
  v1::LeadState told;
  told.add_evaluations()->set_accuracy(0.75);
  told.set_stop_reason("enough");
  told.add_introductions()->set_incarnation(11);
  told.mutable_introductions(0)->set_name("first");
  const std::string path = Open().shards[0].folder + "/lead.textproto";
  std::ofstream(path) << PrintText(told);
  const auto moved = Move(1);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_TRUE(moved->stopped);
  const v1::LeadState found = Found(1)[0]->lead();
  ASSERT_EQ(found.evaluations_size(), 1);
  EXPECT_EQ(found.evaluations(0).accuracy(), 0.75);
  EXPECT_EQ(found.stop_reason(), "enough");
  EXPECT_EQ(found.introductions(0).name(), "first");
  std::ofstream(path) << "evaluations {";
  std::filesystem::remove_all(output_);
  const auto damaged = Move(1);
  EXPECT_TRUE(absl::IsDataLoss(damaged.status())) << damaged.status();
  EXPECT_THAT(std::string(damaged.status().message()), HasSubstr("lead.textproto is damaged"));
}

TEST_F(Reshard, RoundsBeginAnewWhereTheirStateCannotGoOver) {
  Make(StoredJob({"update.rule=ssgd"}));
  for (auto& shard : shards_) shard->Push(6);
  const auto moved = Move(1);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_FALSE(moved->states);
  EXPECT_FALSE(moved->dealer);
  const auto found = Found(1);
  EXPECT_EQ(VectorOf(found), Vector());
  EXPECT_EQ(found[0]->dealer()->completed_tickets(), 0u);
  for (const auto& segment : found[0]->segments()) EXPECT_EQ(segment->open_round(), 0u);
}

TEST_F(Reshard, AServerGoesOnWithItAndItsJournalFollowsTheCheckpoint) {
  Make(StoredJob());
  for (auto& shard : shards_) shard->Push(2);
  ASSERT_TRUE(Move(1).ok());
  const auto found = Found(1);
  const StateDirectory shard = {.folder = moved_.shards[0].folder, .identity = moved_.shards[0].identity};
  const Event join = ToEvent({.kind = DealerEvent::Kind::kJoin, .worker = 1});
  {
    const auto storage = OpenStorage(shard.folder).value();
    const uint64_t next = ReadManifest(*storage, "checkpoint.0000000001")->next_number();
    const auto journal =
        Journal::Open(storage.get(), {.identity = shard.identity, .incarnation = 9, .least_number = next}).value();
    EXPECT_EQ(journal->first_number(), next);
    Event event = join;
    event.number = next;
    journal->Record(event);
    ASSERT_TRUE(journal->status().ok());
  }
  const auto again = Found(1);
  EXPECT_EQ(again[0]->dealer()->joined_workers(), 1u);
  EXPECT_EQ(VectorOf(again), Vector());
  // The journal alone is not enough, and says so.
  auto machines = ShardMachines::Create(moved_, 0).value();
  const auto from_start =
      Recover(*moved_.shards[0].storage, shard.identity, machines.get(), {.from_start = true});
  EXPECT_TRUE(absl::IsDataLoss(from_start.status())) << from_start.status();
}

// One run, which knows that it has lost nothing, also where there will be no journal; and which needs all of
// its servers' directories.
TEST_F(Reshard, ServersOfRoundsWithoutAJournalStartOnIt) {
  const v1::JobSpec job = StoredJob({"update.rule=ssgd", "durability.journal=off", "training.max_workers="});
  Make(job);
  const auto moved = Move(2);
  ASSERT_TRUE(moved.ok()) << moved.status();
  const auto found = Found(2);
  EXPECT_NE(moved_.shards[0].description.common_run_id(), 0u);
  EXPECT_EQ(moved_.shards[0].description.common_run_id(), moved_.shards[1].description.common_run_id());
  for (uint32_t shard = 0; shard < 2; ++shard) {
    EXPECT_TRUE(moved_.shards[shard].description.imported());
    const auto server = ShardServer::Start(
        {.job = moved_.job, .shard = shard, .state_directory = absl::StrCat(output_, "/shard-", shard)});
    ASSERT_TRUE(server.ok()) << server.status();
    EXPECT_EQ((*server)->status().restored().find("lost"), std::string::npos) << (*server)->status().restored();
  }
}

// Of rounds, states of different moments make no run.
TEST_F(Reshard, RoundsAreOfOneMoment) {
  Make(StoredJob({"update.rule=ssgd"}));
  for (auto& shard : shards_) shard->Push(6);
  const auto check = [&](bool whole) {
    const StoredRun run = Open();
    const auto machines = ReplayRun(run, &watch_);
    EXPECT_TRUE(machines.ok()) << machines.status();
    return CheckOneMoment(run, *machines, whole);
  };
  EXPECT_TRUE(check(false).ok());
  // A round that one has closed and the other has not yet.
  const uint64_t open = shards_[0]->machines().segments().front()->open_round();
  while (shards_[1]->machines().segments().front()->open_round() == open) shards_[1]->Push(1);
  EXPECT_TRUE(check(true).ok()) << check(true);
  EXPECT_EQ(check(false).code(), absl::StatusCode::kFailedPrecondition);
  while (shards_[1]->machines().segments().front()->open_round() == open + 1) shards_[1]->Push(1);
  const absl::Status refused = check(true);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat("round ", open, " open")));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat("round ", open + 2)));
}

TEST_F(Reshard, RoundsThatLackSomethingAreNotOfOneMoment) {
  Make(StoredJob({"update.rule=ssgd"}));
  for (auto& shard : shards_) shard->Push(6);
  End();
  for (const bool boot : {false, true}) {
    Describe(1, [&](v1::RunDescription* description) {
      description->set_unjournaled(!boot);
      description->set_boot_id(boot ? "another" : "");
    });
    const StoredRun run = Open();
    const absl::Status refused = CheckOneMoment(run, ReplayRun(run, &watch_).value(), true);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(run.shards[1].folder));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(boot ? "may be lost" : "is lost"));
  }
}

TEST_F(Reshard, WhatIsThereStaysAndWhatFailsIsRemoved) {
  class Late final : public WorkWatch {
   public:
    bool Proceed(const std::string& what, uint64_t) override { return what.find("shard-1") == std::string::npos; }
  } late;
  Make(StoredJob());
  const StoredRun from = Open();
  const auto machines = ReplayRun(from, &watch_);
  const auto source = MachinesSource::Open(*machines).value();
  const StoredRun to = PlanRun(StoredJob({"servers.shards=3"}), from.schema, 1000).value();
  EXPECT_TRUE(absl::IsCancelled(WriteRun(to, *source, nullptr, output_, &late).status()));
  EXPECT_FALSE(std::filesystem::exists(output_ + "/shard-0"));
  ASSERT_TRUE(WriteRun(to, *source, nullptr, output_, &watch_).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(WriteRun(to, *source, nullptr, output_, &watch_).status()));
  EXPECT_EQ(VectorOf(Found(3)), Vector());
}

TEST_F(Reshard, AJobThatWasStoppedStaysSo) {
  Make(StoredJob());
  shards_[0]->Push(2);
  shards_[0]->Stop();
  const auto moved = Move(1);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_TRUE(moved->stopped);
  EXPECT_TRUE(Found(1)[0]->dealer()->stopped());
}

TEST_F(Reshard, AnotherJobIsNamed) {
  Make(StoredJob());
  const StoredRun from = Open();
  const StoredRun to = PlanRun(StoredJob({"servers.shards=1", "update.momentum=0.5"}), from.schema, 1000).value();
  EXPECT_THAT(WhyStatesCannotMove(from, to), HasSubstr("update.momentum"));
}

}  // namespace
}  // namespace foreshard
