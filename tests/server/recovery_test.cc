// The power is cut, or the process killed, after every single operation of a run; and every
// time the state that is found is, to the bit, the one of the undisturbed run at some event, and all
// that was acknowledged is in it.
#include <atomic>
#include <cerrno>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint_files.h"
#include "server/journal_file.h"
#include "tests/common/storage/faulty_storage.h"
#include "tests/server/durable_run.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kEvents = 210;

const UndisturbedRun& RunOf(const std::string& rule) {
  static const auto* const runs = [] {
    auto* made = new std::map<std::string, std::unique_ptr<UndisturbedRun>>;
    for (const char* name : {"dana_zero", "adam"}) {
      (*made)[name] = std::make_unique<UndisturbedRun>(name, false, kEvents);
    }
    (*made)["ssgd"] = std::make_unique<UndisturbedRun>("ssgd", true, kEvents);
    return made;
  }();
  return *runs->at(rule);
}

class Recovery : public ::testing::TestWithParam<const char*> {
 protected:
  const UndisturbedRun& run() const { return RunOf(GetParam()); }

  // What is found must be the undisturbed run up to some event, `least` or later.
  void ExpectExact(const Found& found, uint64_t least, const std::string& when) {
    ASSERT_TRUE(found.status.ok()) << when << ": " << found.status;
    ASSERT_GE(found.through, least) << when;
    ASSERT_LE(found.through, run().size()) << when;
    for (const uint32_t id : found.machines->machines()) {
      ASSERT_EQ(found.machines->Save(id) == run().StateAt(id, found.through), true)
          << when << ": segment " << id << " is not as it was at event " << found.through;
    }
  }

  // A server starts on what was found and brings the run to its end; then it is killed.
  void GoOn(FaultyStorage* storage, JournalMode mode, Found found, const std::string& when) {
    const uint64_t through = found.through;
    DurableRun next(storage, run(), mode, std::move(found.machines));
    const absl::Status opened = next.Open(2);
    ASSERT_TRUE(opened.ok()) << when << ": " << opened;
    ASSERT_EQ(next.first_number(), through + 1) << when;
    for (uint64_t number = through + 1; number <= run().size(); ++number) next.Do(number);
    ExpectExact(Recover(*storage->KillProcess(), run()), run().size(), when + ", then gone on");
  }

  int found_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Rules, Recovery, ::testing::Values("dana_zero", "adam", "ssgd"),
                         [](const auto& info) { return info.param; });

TEST_P(Recovery, TheRunHasAllThatMatters) {
  const auto kinds = run().kinds();
  EXPECT_GT(kinds.at(EventKind::kPush), 100);
  EXPECT_GT(kinds.at(EventKind::kSkip), 1);
  EXPECT_GT(kinds.at(EventKind::kDealerFetch), 1);
  EXPECT_GT(kinds.at(EventKind::kDealerComplete), 1);
  if (std::string(GetParam()) == "ssgd") {
    EXPECT_GT(kinds.at(EventKind::kRoundClosed), 20);
  } else {
    EXPECT_GT(kinds.at(EventKind::kResend), 1);
    EXPECT_GT(kinds.at(EventKind::kExpire), 1);
    EXPECT_GT(kinds.at(EventKind::kRead), 1);
  }
}

TEST_P(Recovery, PowerCutAfterEveryOperationOfASyncedJournal) {
  std::map<std::string, int> checkpoints;  // outlives the run, whose end writes too
  FaultyStorage storage;
  DurableRun server(&storage, run(), JournalMode::kSynced, run().NewMachines());
  storage.AfterEach([&](const FaultyStorage::Operation& operation) {
    if (HasFatalFailure()) return;
    for (uint64_t seed = 0; seed < 6; ++seed) {
      const std::string when =
          absl::StrCat("cut ", seed, " after operation ", operation.number, " on ", operation.path);
      const auto found = storage.CutPower(seed);
      Found recovered = Recover(*found, run());
      ExpectExact(recovered, server.acknowledged(), when);
      if (HasFatalFailure()) return;
      ++checkpoints[recovered.checkpoint];
      ++found_;
      // Everywhere would take long.
      if (seed != 0 || operation.number % 8 != 0) continue;
      // The power is cut again while the next start cuts torn ends and begins its file.
      FaultyStorage& second = *found;
      second.AfterEach([&](const FaultyStorage::Operation& again) {
        if (again.number > 8) return;
        ExpectExact(Recover(*second.CutPower(again.number), run()), server.acknowledged(),
                    when + ", and again");
      });
      GoOn(&second, JournalMode::kSynced, std::move(recovered), when);
    }
  });
  ASSERT_TRUE(server.Open(1).ok());
  for (uint64_t number = 1; number <= run().size(); ++number) server.Do(number);
  EXPECT_EQ(server.acknowledged(), run().size());
  EXPECT_EQ(server.checkpoints(), 3u);
  EXPECT_GT(found_, 6 * 400);
  // Recovered without one, and from each.
  EXPECT_EQ(checkpoints.size(), 4u);
}

TEST_P(Recovery, KilledAfterEveryOperationOfABufferedJournal) {
  FaultyStorage storage;
  DurableRun server(&storage, run(), JournalMode::kBuffered, run().NewMachines());
  storage.AfterEach([&](const FaultyStorage::Operation& operation) {
    if (HasFatalFailure()) return;
    const std::string when =
        absl::StrCat("killed after operation ", operation.number, " on ", operation.path);
    const auto found = storage.KillProcess();
    Found recovered = Recover(*found, run());
    ExpectExact(recovered, server.acknowledged(), when);
    if (HasFatalFailure()) return;
    ++found_;
    if (operation.number % 10 == 0) GoOn(found.get(), JournalMode::kBuffered, std::move(recovered), when);
  });
  ASSERT_TRUE(server.Open(1).ok());
  for (uint64_t number = 1; number <= run().size(); ++number) server.Do(number);
  EXPECT_EQ(server.acknowledged(), run().size());
  EXPECT_GT(found_, 250);
}

// A start believes what a killed one has written, safe or not, and builds upon it; then the
// power is cut.
TEST_P(Recovery, WhatAStartBuildsUponIsSafeBefore) {
  for (const JournalMode mode : {JournalMode::kBuffered, JournalMode::kSynced}) {
    FaultyStorage storage;
    DurableRun server(&storage, run(), mode, run().NewMachines());
    storage.AfterEach([&](const FaultyStorage::Operation& operation) {
      if (HasFatalFailure() || operation.number % 3 != 0) return;
      const std::string when =
          absl::StrCat("killed after operation ", operation.number, " on ", operation.path);
      const auto left = storage.KillProcess();
      Found recovered = Recover(*left, run());
      ExpectExact(recovered, server.acknowledged(), when);
      if (HasFatalFailure() || recovered.through + 2 > run().size()) return;
      const uint64_t first = recovered.through + 1;
      DurableRun next(left.get(), run(), JournalMode::kSynced, std::move(recovered.machines));
      ASSERT_TRUE(next.Open(2).ok()) << when;
      next.Do(first);
      next.Do(first + 1);
      ASSERT_EQ(next.acknowledged(), first + 1);
      for (uint64_t seed = 0; seed < 6; ++seed) {
        ExpectExact(Recover(*left->CutPower(seed), run()), next.acknowledged(),
                    absl::StrCat(when, ", then cut ", seed));
      }
      ++found_;
    });
    ASSERT_TRUE(server.Open(1).ok());
    for (uint64_t number = 1; number <= run().size(); ++number) server.Do(number);
  }
  EXPECT_GT(found_, 150);
}

// It promises nothing then; but what is found is exact, or an error says where it is not.
TEST_P(Recovery, PowerCutOfABufferedJournalGivesAnExactStateOrAnError) {
  int refused = 0;
  uint64_t safe = 0;
  FaultyStorage storage;
  DurableRun server(&storage, run(), JournalMode::kBuffered, run().NewMachines());
  storage.AfterEach([&](const FaultyStorage::Operation& operation) {
    if (HasFatalFailure()) return;
    for (uint64_t seed = 0; seed < 6; ++seed) {
      const std::string when = absl::StrCat("cut ", seed, " after operation ", operation.number);
      const Found recovered = Recover(*storage.CutPower(seed), run());
      if (absl::IsDataLoss(recovered.status)) {
        EXPECT_THAT(std::string(recovered.status.message()), HasSubstr("/faulty/journal.")) << when;
        ++refused;
        continue;
      }
      // A checkpoint holds all the same.
      ExpectExact(recovered, safe, when);
      ++found_;
    }
  });
  ASSERT_TRUE(server.Open(1).ok());
  for (uint64_t number = 1; number <= run().size(); ++number) {
    const uint64_t checkpoints = server.checkpoints();
    server.Do(number);
    if (server.checkpoints() > checkpoints) safe = number;
  }
  EXPECT_GT(found_, 500);
  EXPECT_GT(refused, 0);
}

// As of a copy that has the checkpoint alone.
TEST_P(Recovery, ACheckpointThatNeedsItsJournalSaysSo) {
  FaultyStorage storage;
  DurableRun server(&storage, run(), JournalMode::kBuffered, run().NewMachines());
  ASSERT_TRUE(server.Open(1).ok());
  for (uint64_t number = 1; number <= 3 * kCheckpointEvery; ++number) server.Do(number);
  ASSERT_GT(server.checkpoints(), 1u);
  const auto copy = storage.KillProcess();
  const auto files = ListJournalFiles(*copy).value();
  ASSERT_FALSE(files.empty());
  for (const JournalFileName& file : files) ASSERT_TRUE(copy->Remove(file.name).ok());
  const absl::Status refused = Recover(*copy, run()).status;
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  const auto checkpoint = Checkpoint::OpenNewest(*copy, kDurableIdentity, nullptr).value();
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("has no journal"), HasSubstr(checkpoint->name()),
                    HasSubstr(absl::StrCat("from ", NameOfJournalFile(checkpoint->manifest().about.journal_file), " on"))));
}

TEST_P(Recovery, ADiskThatRefusesFromAnyOperationOnLosesNothingAcknowledged) {
  uint64_t operations = 0;
  {
    FaultyStorage storage;
    DurableRun server(&storage, run(), JournalMode::kSynced, run().NewMachines());
    ASSERT_TRUE(server.Open(1).ok());
    for (uint64_t number = 1; number <= run().size(); ++number) server.Do(number);
    operations = storage.operations();
  }
  for (uint64_t operation = 5; operation <= operations; operation += 3) {
    FaultyStorage storage;
    storage.RefuseFrom(operation, operation % 2 == 0 ? ENOSPC : EIO);
    DurableRun server(&storage, run(), JournalMode::kSynced, run().NewMachines());
    ASSERT_TRUE(server.Open(1).ok());
    for (uint64_t number = 1; number <= run().size(); ++number) server.Do(number);
    EXPECT_FALSE(server.journal().status().ok() && server.acknowledged() < run().size());
    for (uint64_t seed = 0; seed < 2; ++seed) {
      const Found recovered = Recover(*storage.CutPower(seed), run());
      ExpectExact(recovered, server.acknowledged(),
                  absl::StrCat("refused from operation ", operation, " on"));
      if (HasFatalFailure()) return;
    }
  }
}

// As in a server: events take effect one by one, and are recorded by many threads at once.
TEST_P(Recovery, PowerCutAndKillUnderManyThreads) {
  for (const JournalMode mode : {JournalMode::kSynced, JournalMode::kBuffered}) {
    std::atomic<int> found{0};
    std::atomic<bool> failed{false};
    FaultyStorage storage;
    DurableRun server(&storage, run(), mode, run().NewMachines());
    storage.AfterEach([&](const FaultyStorage::Operation& operation) {
      if (failed) return;
      // What is acknowledged now must be in what is found then.
      const uint64_t least = server.acknowledged();
      const auto left =
          mode == JournalMode::kSynced ? storage.CutPower(operation.number) : storage.KillProcess();
      ExpectExact(Recover(*left, run()), least, absl::StrCat("operation ", operation.number));
      failed = failed || HasFatalFailure();
      ++found;
    });
    ASSERT_TRUE(server.Open(1).ok());
    absl::Mutex mutex;
    uint64_t number = 0;
    const std::unique_ptr<Machines> machines = run().NewMachines();
    std::vector<std::thread> threads;
    for (int k = 0; k < 6; ++k) {
      threads.emplace_back([&] {
        for (;;) {
          uint64_t mine = 0;
          {
            absl::MutexLock lock(&mutex);
            if (number == run().size()) return;
            mine = ++number;
            EXPECT_TRUE(machines->Perform(run().event(mine)).ok());
          }
          server.Record(mine);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(server.acknowledged(), run().size());
    EXPECT_GT(found, 10);
  }
}

}  // namespace
}  // namespace foreshard
