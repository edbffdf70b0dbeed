#include "tools/state/replay.h"

#include "gmock/gmock.h"
#include "tests/tools/state/stored_run.h"
#include "tools/state/event_text.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

class ReplayState : public StoredRunTest {
 protected:
  static void ExpectSame(const ShardMachines& replayed, const ShardMachines& wanted) {
    ASSERT_EQ(replayed.machines(), wanted.machines());
    for (const uint32_t id : wanted.machines()) {
      EXPECT_EQ(Difference(replayed, id, replayed.Save(id), wanted.Save(id)), "") << id;
    }
  }
};
class ReplayOfRules : public ReplayState, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Rules, ReplayOfRules, ::testing::Values("dana_zero", "adam", "ssgd"));

TEST_P(ReplayOfRules, FromStartAndFromEachCheckpointItIsTheSame) {
  Make(StoredJobOf(GetParam()));
  std::vector<std::string> starts = {""};
  for (auto& shard : shards_) {
    shard->Push(5);
    starts.push_back(shard->Checkpoint(5, false));
    shard->Push(4);
    starts.push_back(shard->Checkpoint(9, false));
    shard->Push(3);
  }
  const StoredRun run = Open();
  for (const StateDirectory& shard : run.shards) {
    for (size_t k = 0; k < 3; ++k) {
      SCOPED_TRACE(starts[k]);
      auto machines = ShardMachines::Create(run, shard.shard).value();
      const auto recovered = Recover(*shard.storage, shard.identity, machines.get(),
                                     {.checkpoint = starts[k], .from_start = k == 0});
      ASSERT_TRUE(recovered.ok()) << recovered.status();
      EXPECT_EQ(recovered->next_number, shards_[shard.shard]->last() + 1);
      ExpectSame(*machines, shards_[shard.shard]->machines());
    }
  }
}

TEST_P(ReplayOfRules, EveryStateOfACheckpointIsReachedOnTheWay) {
  Make(StoredJobOf(GetParam()));
  shards_[0]->Push(5);
  const std::string name = shards_[0]->Checkpoint(5, false);
  shards_[0]->Push(4);
  const StoredRun run = Open();
  const StateDirectory& shard = run.shards[0];
  const auto checkpoint = Checkpoint::Open(*shard.storage, name, shard.identity).value();
  std::map<uint32_t, uint64_t> numbers;
  for (const auto& state : checkpoint->manifest().states) numbers[state.segment] = state.number;
  auto machines = ShardMachines::Create(run, 0).value();
  std::map<uint32_t, std::string> reached;
  machines->WatchAt(numbers, [&](uint32_t machine, const std::string& state) {
    EXPECT_TRUE(reached.emplace(machine, state).second);
    return absl::OkStatus();
  });
  const auto recovered = Recover(*shard.storage, shard.identity, machines.get(), {.from_start = true});
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  ASSERT_TRUE(machines->FinishWatch(recovered->next_number - 1).ok());
  ASSERT_EQ(reached.size(), numbers.size());
  for (const auto& [machine, state] : reached) {
    EXPECT_EQ(Difference(*machines, machine, state, checkpoint->ReadState(machine)->state), "") << machine;
  }
}

TEST_P(ReplayOfRules, StopsAfterAnyEvent) {
  Make(StoredJobOf(GetParam()));
  shards_[0]->Push(3);
  const StoredRun run = Open();
  const StateDirectory& shard = run.shards[0];
  // What the machine of each event was after it.
  std::vector<std::string> after;
  auto whole = ShardMachines::Create(run, 0).value();
  whole->set_observer([&](const Event& event, const Effect&) { after.push_back(whole->Save(event.segment)); });
  ASSERT_TRUE(Recover(*shard.storage, shard.identity, whole.get()).ok());
  ASSERT_EQ(after.size(), shards_[0]->last());
  for (uint64_t until = 1; until <= shards_[0]->last(); ++until) {
    auto machines = ShardMachines::Create(run, 0).value();
    Event newest;
    machines->set_observer([&](const Event& event, const Effect&) { newest = event; });
    const auto recovered = Recover(*shard.storage, shard.identity, machines.get(), {.until = until, .from_start = true});
    ASSERT_TRUE(recovered.ok()) << recovered.status();
    EXPECT_EQ(newest.number, until);
    EXPECT_EQ(machines->Save(newest.segment) == after[until - 1], true) << until;
    EXPECT_EQ(recovered->next_number, until + 1);
    EXPECT_EQ(recovered->replayed, until);
  }
}

TEST_F(ReplayState, ADifferenceIsNamedBySegmentAndElement) {
  Make(StoredJob());
  shards_[0]->Push(3);
  const StoredRun run = Open();
  auto machines = ShardMachines::Create(run, 0).value();
  ASSERT_TRUE(Recover(*run.shards[0].storage, run.shards[0].identity, machines.get()).ok());
  const uint32_t id = machines->segments()[1]->plan().id;
  const std::string wanted = machines->Save(id);
  // One more push.
  shards_[0]->PushTo(id, 0, true);
  const std::string other = shards_[0]->machines().Save(id);
  const uint64_t begin = machines->segments()[1]->plan().begin;
  EXPECT_THAT(Difference(*machines, id, other, wanted), HasSubstr(absl::StrCat("element 0 (", begin, " of the model's vector)")));
}

TEST_F(ReplayState, ARoundThatIsCompleteAndNotClosedIsClosedOnceByWhoeverGoesOn) {
  Make(StoredJob({"update.rule=ssgd"}));
  shards_[0]->Push(4);
  const uint32_t id = shards_[0]->machines().segments()[1]->plan().id;
  // Killed between the event that completes the round and kRoundClosed.
  shards_[0]->PushTo(id, 0, false);
  shards_[0]->PushTo(id, 1, false);
  const StoredRun run = Open();
  auto machines = ShardMachines::Create(run, 0).value();
  ASSERT_TRUE(Recover(*run.shards[0].storage, run.shards[0].identity, machines.get()).ok());
  ExpectSame(*machines, shards_[0]->machines());
  const uint64_t round = machines->Find(id)->open_round();
  EXPECT_EQ(machines->CompleteRounds(), std::vector<uint32_t>{id});
  EXPECT_EQ(machines->CloseCompleteRounds(), std::vector<uint32_t>{id});
  EXPECT_EQ(machines->Find(id)->open_round(), round + 1);
  EXPECT_TRUE(machines->CloseCompleteRounds().empty());
}

TEST_F(ReplayState, EventsInWordsAndAsJson) {
  Make(StoredJob());
  shards_[0]->Push(2);
  const StoredRun run = Open();
  auto machines = ShardMachines::Create(run, 0).value();
  std::string text;
  std::vector<nlohmann::ordered_json> lines;
  machines->set_observer([&](const Event& event, const Effect& effect) {
    absl::StrAppend(&text, EventText(event, effect), "\n");
    lines.push_back(EventJson(0, event, effect));
  });
  ASSERT_TRUE(Recover(*run.shards[0].storage, run.shards[0].identity, machines.get()).ok());
  EXPECT_THAT(text, HasSubstr("1 initialise of segment 0: none, "));
  EXPECT_THAT(text, HasSubstr("read of segment 0 by worker 0: read of the slot: current"));
  EXPECT_THAT(text, HasSubstr("push of segment 0 by worker 0: sequence 1, ticket 1, held version 0, none, "));
  EXPECT_THAT(text, HasSubstr("applied, version 1, clock 1, lag 0"));
  EXPECT_THAT(text, HasSubstr("dealer_fetch by worker 0: up to 1 tickets: dealt 0: "));
  ASSERT_EQ(lines.size(), shards_[0]->last());
  for (size_t k = 0; k < lines.size(); ++k) EXPECT_EQ(lines[k]["number"], k + 1);
  EXPECT_EQ(lines[0]["kind"], "initialise");
  EXPECT_EQ(lines.back()["segment"], "dealer");
  EXPECT_EQ(lines.back()["completed_tickets"], 2);
}

}  // namespace
}  // namespace foreshard
