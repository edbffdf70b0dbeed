#include "server/journal.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/storage/faulty_storage.h"
#include "tests/server/journal_harness.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FileNames(const Storage& storage) {
  std::string names;
  const auto listed = ListJournalFiles(storage).value();
  for (const JournalFileName& file : listed) {
    absl::StrAppend(&names, names.empty() ? "" : " ", file.sequence);
  }
  return names;
}

void AwaitWaiting(const Journal& journal, uint64_t events) {
  while (journal.figures().waiting < events) absl::SleepFor(absl::Milliseconds(1));
}

class JournalModes : public ::testing::TestWithParam<JournalMode> {};
INSTANTIATE_TEST_SUITE_P(Both, JournalModes,
                         ::testing::Values(JournalMode::kBuffered, JournalMode::kSynced),
                         [](const auto& info) {
                           return info.param == JournalMode::kBuffered ? "Buffered" : "Synced";
                         });

TEST_P(JournalModes, ReadsBackWhatWasRecorded) {
  FaultyStorage storage;
  {
    const auto journal = Journal::Open(&storage, TestJournalOptions(GetParam())).value();
    EXPECT_EQ(journal->first_number(), 1u);
    RecordAll(*journal, 1, 20);
    journal->Record(OwnedEvent(21, 0).event);
    journal->Record(OwnedEvent(22, 100'000).event);
    EXPECT_TRUE(journal->status().ok());
    const JournalFigures figures = journal->figures();
    EXPECT_EQ(figures.events, 22u);
    EXPECT_EQ(figures.bytes, 22 * kEventOverheadBytes + 20 * 20 + 100'000);
    EXPECT_EQ(figures.writes, 22u);
    EXPECT_EQ(figures.syncs, GetParam() == JournalMode::kSynced ? 22u : 0u);
    // While it is open, too.
    EXPECT_EQ(ReadJournal(storage).numbers, Numbers(1, 22));
  }
  for (const uint64_t from : {0, 1, 2, 13, 22, 23, 100}) {
    const ReadBack read = ReadJournal(storage, from);
    EXPECT_TRUE(read.status.ok()) << read.status;
    EXPECT_EQ(read.numbers, Numbers(std::max<uint64_t>(from, 1), 22));
    EXPECT_EQ(read.end.next_number, 23u);
    EXPECT_EQ(read.end.incarnation, 7u);
    EXPECT_TRUE(read.end.torn.empty());
  }
}

TEST_P(JournalModes, WhoComesEarlyWaitsForItsPredecessorsAndSharesTheirWrite) {
  FaultyStorage storage;
  const auto journal = Journal::Open(&storage, TestJournalOptions(GetParam())).value();
  std::atomic<int> returned{0};
  std::vector<std::thread> threads;
  for (const uint64_t number : {4, 2, 3, 5}) {
    threads.emplace_back([&, number] {
      journal->Record(OwnedEvent(number).event);
      ++returned;
    });
  }
  AwaitWaiting(*journal, 4);
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(returned, 0);
  EXPECT_EQ(ReadJournal(storage).numbers, Numbers(1, 0));
  RecordAll(*journal, 1, 1);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ReadJournal(storage).numbers, Numbers(1, 5));
  EXPECT_EQ(journal->figures().writes, 1u);
  EXPECT_EQ(journal->figures().waiting, 0u);
}

TEST_P(JournalModes, CallersThatComeDuringAWriteShareTheNext) {
  FaultyStorage storage;
  absl::Mutex mutex;
  bool blocked = false, go_on = false;
  storage.BeforeEach([&](const FaultyStorage::Operation& operation) {
    if (operation.kind != FaultyStorage::Kind::kAppend) return;
    absl::MutexLock lock(&mutex);
    blocked = true;
    mutex.Await(absl::Condition(&go_on));
  });
  go_on = true;
  const auto journal = Journal::Open(&storage, TestJournalOptions(GetParam())).value();
  go_on = blocked = false;
  std::vector<std::thread> threads;
  threads.emplace_back([&] { journal->Record(OwnedEvent(1).event); });
  {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(&blocked));
  }
  for (uint64_t number = 2; number <= 9; ++number) {
    threads.emplace_back([&, number] { journal->Record(OwnedEvent(number).event); });
  }
  AwaitWaiting(*journal, 8);
  {
    absl::MutexLock lock(&mutex);
    go_on = true;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(journal->figures().writes, 2u);
  EXPECT_EQ(journal->figures().syncs, GetParam() == JournalMode::kSynced ? 2u : 0u);
  EXPECT_EQ(ReadJournal(storage).numbers, Numbers(1, 9));
}

TEST_P(JournalModes, ManyThreadsWriteOneOrder) {
  constexpr uint64_t kEvents = 2000;
  FaultyStorage storage;
  JournalOptions options = TestJournalOptions(GetParam());
  options.file_bytes = 20'000;
  const auto journal = Journal::Open(&storage, options).value();
  std::atomic<uint64_t> number{0};
  std::vector<std::thread> threads;
  for (int k = 0; k < 8; ++k) {
    threads.emplace_back([&] {
      for (;;) {
        const uint64_t mine = ++number;
        if (mine > kEvents) return;
        journal->Record(OwnedEvent(mine, mine % 50).event);
      }
    });
  }
  std::thread rotating([&] {
    for (int k = 0; k < 20; ++k) {
      EXPECT_TRUE(journal->Rotate().ok());
      EXPECT_TRUE(journal->SyncThrough(journal->figures().events).ok());
    }
  });
  for (std::thread& thread : threads) thread.join();
  rotating.join();
  EXPECT_TRUE(journal->status().ok());
  EXPECT_EQ(ReadJournal(storage).numbers, Numbers(1, kEvents));
  // Each file is within its bound.
  const auto files = ListJournalFiles(storage).value();
  EXPECT_GT(files.size(), 9u);
  for (const JournalFileName& file : files) EXPECT_LE(storage.Size(file.name).value(), options.file_bytes);
}

TEST_P(JournalModes, FilesRollAtTheirBoundAndALargeRecordHasItsOwn) {
  FaultyStorage storage;
  JournalOptions options = TestJournalOptions(GetParam());
  options.file_bytes = 1000;
  const auto journal = Journal::Open(&storage, options).value();
  RecordAll(*journal, 1, 8);
  EXPECT_EQ(FileNames(storage), GetParam() == JournalMode::kBuffered ? "1" : "1 2");
  journal->Record(OwnedEvent(9, 5000).event);
  RecordAll(*journal, 10, 10);
  const uint64_t last = journal->figures().file;
  EXPECT_EQ(ReadJournal(storage, 9).numbers, Numbers(9, 10));
  EXPECT_GT(storage.Size(NameOfJournalFile(last - 1)).value(), 5000u);
  EXPECT_EQ(ReadJournal(storage).numbers, Numbers(1, 10));
}

TEST_P(JournalModes, RotateLeavesAllThatWasRecordedInFilesBefore) {
  FaultyStorage storage;
  const auto journal = Journal::Open(&storage, TestJournalOptions(GetParam())).value();
  // Nothing in it: the file stays the one.
  EXPECT_EQ(journal->Rotate().value(), 1u);
  RecordAll(*journal, 1, 5);
  EXPECT_EQ(journal->Rotate().value(), 2u);
  EXPECT_EQ(journal->Rotate().value(), 2u);
  RecordAll(*journal, 6, 7);
  EXPECT_EQ(journal->Rotate().value(), 3u);
  EXPECT_EQ(FileNames(storage), "1 2 3");
  EXPECT_EQ(ReadJournal(storage).numbers, Numbers(1, 7));
  ASSERT_TRUE(journal->RemoveBefore(2).ok());
  EXPECT_EQ(FileNames(storage), "2 3");
  EXPECT_EQ(ReadJournal(storage).numbers, Numbers(6, 7));
  EXPECT_EQ(ReadJournal(storage, 6).numbers, Numbers(6, 7));
  const ReadBack gone = ReadJournal(storage, 5);
  EXPECT_TRUE(absl::IsDataLoss(gone.status));
  EXPECT_THAT(std::string(gone.status.message()), AllOf(HasSubstr("journal.0000000002 begins with event 6"),
                                                        HasSubstr("events from 5 on are needed")));
  // Never the one that is being written.
  ASSERT_TRUE(journal->RemoveBefore(100).ok());
  EXPECT_EQ(FileNames(storage), "3");
  RecordAll(*journal, 8, 8);
  EXPECT_EQ(ReadJournal(storage).numbers, Numbers(8, 8));
}

TEST_P(JournalModes, KeepsFilesWithEventsThatAreWantedStill) {
  FaultyStorage storage;
  const auto journal = Journal::Open(&storage, TestJournalOptions(GetParam())).value();
  for (uint64_t first = 1; first <= 7; first += 3) {
    RecordAll(*journal, first, first + 2);
    ASSERT_TRUE(journal->Rotate().ok());
  }
  EXPECT_EQ(FileNames(storage), "1 2 3 4");
  ASSERT_TRUE(journal->RemoveBefore(4, 1).ok());
  EXPECT_EQ(FileNames(storage), "1 2 3 4");
  ASSERT_TRUE(journal->RemoveBefore(4, 6).ok());
  EXPECT_EQ(FileNames(storage), "2 3 4");
  ASSERT_TRUE(journal->RemoveBefore(3, 100).ok());
  EXPECT_EQ(FileNames(storage), "3 4");
  ASSERT_TRUE(journal->RemoveBefore(4, 10).ok());
  EXPECT_EQ(FileNames(storage), "4");
}

TEST_P(JournalModes, StartsFollowEachOther) {
  FaultyStorage storage;
  uint64_t next = 1;
  for (uint64_t start = 1; start <= 4; ++start) {
    const auto journal = Journal::Open(&storage, TestJournalOptions(GetParam(), start)).value();
    EXPECT_EQ(journal->first_number(), next);
    // The third one records nothing.
    const uint64_t last = start == 3 ? next - 1 : next + 4;
    RecordAll(*journal, next, last);
    next = last + 1;
  }
  EXPECT_EQ(FileNames(storage), "1 2 3 4");
  auto reader = JournalReader::Open(storage, kTestIdentity, 0).value();
  while (reader->Next().value().has_value()) continue;
  std::vector<uint64_t> incarnations, firsts;
  for (const JournalFileHeader& header : reader->files()) {
    incarnations.push_back(header.incarnation);
    firsts.push_back(header.first_number);
  }
  EXPECT_THAT(incarnations, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(firsts, ElementsAre(1, 6, 11, 11));
  EXPECT_EQ(reader->end().next_number, 16u);
  EXPECT_EQ(reader->end().incarnation, 4u);
}

TEST_P(JournalModes, ACheckpointAheadOfTheJournalSetsTheNextNumber) {
  FaultyStorage storage;
  RecordAll(*Journal::Open(&storage, TestJournalOptions(GetParam(), 1)).value(), 1, 5);
  JournalOptions options = TestJournalOptions(GetParam(), 2);
  options.least_number = 3;
  EXPECT_EQ(Journal::Open(&storage, options).value()->first_number(), 6u);
  options.least_number = 101;
  {
    const auto journal = Journal::Open(&storage, options).value();
    EXPECT_EQ(journal->first_number(), 101u);
    RecordAll(*journal, 101, 103);
  }
  EXPECT_EQ(ReadJournal(storage, 101).numbers, Numbers(101, 103));
  const ReadBack read = ReadJournal(storage, 4);
  EXPECT_EQ(read.numbers, Numbers(4, 5));
  EXPECT_TRUE(absl::IsDataLoss(read.status));
  EXPECT_THAT(std::string(read.status.message()), HasSubstr("events 6 to 100 are in no file"));
}

// What a buffered one has left to the kernel may be gone then, although its Record has returned.
TEST_P(JournalModes, ASyncThatFailsMayLoseWhatWasRecorded) {
  FaultyStorage storage;
  const auto journal = Journal::Open(&storage, TestJournalOptions(GetParam())).value();
  RecordAll(*journal, 1, 3);
  EXPECT_FALSE(journal->may_have_lost());
  storage.RefuseFrom(storage.operations() + 1, EIO);
  if (GetParam() == JournalMode::kBuffered) {
    EXPECT_FALSE(journal->SyncThrough(3).ok());
  } else {
    RecordAll(*journal, 4, 4);
  }
  EXPECT_FALSE(journal->status().ok());
  EXPECT_EQ(journal->may_have_lost(), GetParam() == JournalMode::kBuffered);
}

// Nothing of those before.
TEST_P(JournalModes, AnAppendThatFailsLosesNothingThatWasRecorded) {
  FaultyStorage storage;
  const auto journal = Journal::Open(&storage, TestJournalOptions(GetParam())).value();
  RecordAll(*journal, 1, 3);
  storage.RefuseFrom(storage.operations() + 1, ENOSPC);
  RecordAll(*journal, 4, 4);
  EXPECT_FALSE(journal->status().ok());
  EXPECT_FALSE(journal->may_have_lost());
}

TEST_P(JournalModes, AFailureIsFinalAndBlocksNobody) {
  for (const auto& [error, text] :
       {std::pair{ENOSPC, "free space"}, std::pair{EROFS, "writable"}, std::pair{EIO, "dmesg"}}) {
    FaultyStorage storage;
    int failures = 0;
    JournalOptions options = TestJournalOptions(GetParam());
    options.on_failure = [&](const absl::Status& status) {
      ++failures;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("ends with event 3"), HasSubstr("journal.0000000001")));
    };
    const auto journal = Journal::Open(&storage, options).value();
    RecordAll(*journal, 1, 3);
    storage.RefuseFrom(storage.operations() + 1, error);
    // Late ones that wait for their predecessor are let go when that one fails.
    std::thread waiting([&] { journal->Record(OwnedEvent(5).event); });
    AwaitWaiting(*journal, 1);
    RecordAll(*journal, 4, 4);
    waiting.join();
    const absl::Status status = journal->status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    const uint64_t operations = storage.operations();
    RecordAll(*journal, 6, 9);
    RecordAll(*journal, 20, 20);  // not even its predecessors are waited for
    EXPECT_EQ(journal->Rotate().status(), status);
    EXPECT_EQ(journal->SyncThrough(30), status);
    EXPECT_EQ(journal->Close(), status);
    EXPECT_EQ(storage.operations(), operations);
    EXPECT_EQ(failures, 1);
    // What was recorded before is there.
    const ReadBack read = ReadJournal(storage);
    EXPECT_TRUE(read.status.ok()) << read.status;
    // Of the group that failed a whole record may have got there.
    EXPECT_THAT(read.numbers, AnyOf(Numbers(1, 3), Numbers(1, 4)));
  }
}

TEST(Journal, ASyncThatFailedIsNotTriedAgain) {
  FaultyStorage storage;
  const auto journal = Journal::Open(&storage, TestJournalOptions(JournalMode::kSynced)).value();
  RecordAll(*journal, 1, 1);
  storage.RefuseNext(FaultyStorage::Kind::kSync, EIO);
  RecordAll(*journal, 2, 2);
  EXPECT_TRUE(absl::IsDataLoss(journal->status()));
  const uint64_t operations = storage.operations();
  RecordAll(*journal, 3, 3);
  EXPECT_EQ(storage.operations(), operations);
}

TEST(Journal, ABufferedOneSyncsWhereItIsAskedTo) {
  FaultyStorage storage;
  JournalOptions options = TestJournalOptions(JournalMode::kBuffered);
  options.file_bytes = 500;
  const auto journal = Journal::Open(&storage, options).value();
  RecordAll(*journal, 1, 12);
  EXPECT_GT(ListJournalFiles(storage)->size(), 3u);
  ASSERT_TRUE(journal->SyncThrough(12).ok());
  for (uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(ReadJournal(*storage.CutPower(seed)).numbers, Numbers(1, 12));
  }
  const uint64_t syncs = journal->figures().syncs;
  ASSERT_TRUE(journal->SyncThrough(10).ok());
  EXPECT_EQ(journal->figures().syncs, syncs);  // nothing new to sync
  RecordAll(*journal, 13, 13);
  storage.RefuseNext(FaultyStorage::Kind::kSync, EIO);
  EXPECT_TRUE(absl::IsDataLoss(journal->SyncThrough(13)));
  EXPECT_TRUE(absl::IsDataLoss(journal->status()));
}

TEST(Journal, ABufferedOneHoldsFewFilesOpenThatAreNotSynced) {
  FaultyStorage storage;
  JournalOptions options = TestJournalOptions(JournalMode::kBuffered);
  options.file_bytes = 1;  // a record a file
  const auto journal = Journal::Open(&storage, options).value();
  RecordAll(*journal, 1, 30);
  // All but the last few are safe already.
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const ReadBack read = ReadJournal(*storage.CutPower(seed));
    EXPECT_GE(read.numbers.size(), 20u);
  }
}

TEST_P(JournalModes, SyncThroughWaitsForTheEvent) {
  FaultyStorage storage;
  const auto journal = Journal::Open(&storage, TestJournalOptions(GetParam())).value();
  std::atomic<bool> synced{false};
  std::thread syncing([&] {
    EXPECT_TRUE(journal->SyncThrough(2).ok());
    synced = true;
  });
  RecordAll(*journal, 1, 1);
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(synced);
  RecordAll(*journal, 2, 2);
  syncing.join();
  for (uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(ReadJournal(*storage.CutPower(seed)).numbers, Numbers(1, 2));
  }
}

TEST_P(JournalModes, NumbersThatGoWrongAreFaultsAndNotWaits) {
  const auto fault = [&](const std::vector<uint64_t>& numbers) {
    FaultyStorage storage;
    JournalOptions options = TestJournalOptions(GetParam());
    options.patience = absl::Milliseconds(50);
    const auto journal = Journal::Open(&storage, options).value();
    for (const uint64_t number : numbers) journal->Record(OwnedEvent(number).event);
    EXPECT_TRUE(absl::IsInternal(journal->status())) << journal->status();
    return std::string(journal->status().message());
  };
  EXPECT_THAT(fault({1, 2, 2}), HasSubstr("event 2 of 20 bytes was recorded where event 3 is the next"));
  EXPECT_THAT(fault({1, 0}), HasSubstr("event 0"));
  EXPECT_THAT(fault({1, 3}), HasSubstr("event 2 was not recorded for 50ms"));
  EXPECT_THAT(fault({1, 2 + JournalOptions().most_ahead}), HasSubstr("event 2 was not recorded for 50ms"));
  // A number that nobody has given out is the caller's mistake, and not the journal's end.
  FaultyStorage storage;
  JournalOptions options = TestJournalOptions(GetParam());
  options.patience = absl::Milliseconds(50);
  const auto journal = Journal::Open(&storage, options).value();
  EXPECT_TRUE(absl::IsDeadlineExceeded(journal->SyncThrough(1)));
  EXPECT_TRUE(journal->status().ok());
}

// One caller with many events, and others whose numbers are far behind those.
TEST_P(JournalModes, WhoComesFarTooEarlyWaitsToBeLetIn) {
  FaultyStorage storage;
  JournalOptions options = TestJournalOptions(GetParam());
  options.most_ahead = 4;
  const auto journal = Journal::Open(&storage, options).value();
  std::atomic<int> returned{0};
  std::vector<std::thread> early;
  for (const uint64_t number : {40, 5, 39}) {
    early.emplace_back([&, number] {
      journal->Record(OwnedEvent(number).event);
      ++returned;
    });
  }
  // One beyond what may lie in wait has to wait outside.
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(journal->figures().waiting, 0u);
  EXPECT_EQ(returned, 0);
  RecordAll(*journal, 1, 4);
  RecordAll(*journal, 6, 38);
  for (std::thread& thread : early) thread.join();
  EXPECT_TRUE(journal->status().ok()) << journal->status();
  EXPECT_EQ(ReadJournal(storage).numbers, Numbers(1, 40));
}

TEST_P(JournalModes, WhoWaitsToBeLetInHearsOfTheEnd) {
  FaultyStorage storage;
  JournalOptions options = TestJournalOptions(GetParam());
  options.most_ahead = 4;
  const auto journal = Journal::Open(&storage, options).value();
  std::thread early([&] { journal->Record(OwnedEvent(50).event); });
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_TRUE(journal->Close().ok());
  early.join();
  EXPECT_THAT(std::string(journal->status().message()), HasSubstr("after the journal was closed"));
  EXPECT_EQ(ReadJournal(storage).numbers, Numbers(1, 0));
}

TEST(Journal, AClosedOneTakesNothingMore) {
  FaultyStorage storage;
  const auto journal = Journal::Open(&storage, TestJournalOptions(JournalMode::kBuffered)).value();
  RecordAll(*journal, 1, 3);
  ASSERT_TRUE(journal->Close().ok());
  ASSERT_TRUE(journal->Close().ok());
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(ReadJournal(*storage.CutPower(seed)).numbers, Numbers(1, 3));
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(journal->Rotate().status()));
  RecordAll(*journal, 4, 4);
  EXPECT_THAT(std::string(journal->status().message()), HasSubstr("after the journal was closed"));
}

// Holds appends back until it is told to let them go.
class HeldAppends {
 public:
  explicit HeldAppends(FaultyStorage* storage) {
    storage->BeforeEach([this](const FaultyStorage::Operation& operation) {
      if (operation.kind != FaultyStorage::Kind::kAppend) return;
      absl::MutexLock lock(&mutex_);
      waiting_ = !free_;
      mutex_.Await(absl::Condition(&free_));
    });
  }
  void Hold() {
    absl::MutexLock lock(&mutex_);
    free_ = false;
  }
  void AwaitOne() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&waiting_));
  }
  void LetGo() {
    absl::MutexLock lock(&mutex_);
    free_ = true;
  }

 private:
  absl::Mutex mutex_;
  bool free_ = true, waiting_ = false;
};

TEST_P(JournalModes, WhatCameBeforeCloseIsWrittenInFrontOfTheEnd) {
  FaultyStorage storage;
  HeldAppends appends(&storage);
  JournalOptions options = TestJournalOptions(GetParam());
  // Who waits looks up every 2 ms, and so stands behind Close in the mutex's queue.
  options.patience = absl::Milliseconds(20);
  const auto journal = Journal::Open(&storage, options).value();
  appends.Hold();
  std::thread first([&] { journal->Record(OwnedEvent(1).event); });
  appends.AwaitOne();
  std::thread second([&] { journal->Record(OwnedEvent(2).event); });
  AwaitWaiting(*journal, 1);
  std::thread closing([&] { EXPECT_TRUE(journal->Close().ok()); });
  absl::SleepFor(absl::Milliseconds(100));
  appends.LetGo();
  for (std::thread* thread : {&first, &second, &closing}) thread->join();
  EXPECT_TRUE(journal->status().ok()) << journal->status();
  const ReadBack read = ReadJournal(storage);
  EXPECT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.numbers, Numbers(1, 2));
}

TEST_P(JournalModes, ARotationThatCloseOvertakesWritesNothing) {
  for (int round = 0; round < 100; ++round) {
    FaultyStorage storage;
    HeldAppends appends(&storage);
    const auto journal = Journal::Open(&storage, TestJournalOptions(GetParam())).value();
    appends.Hold();
    std::thread recording([&] { journal->Record(OwnedEvent(1).event); });
    appends.AwaitOne();
    std::thread rotating([&] {
      const auto file = journal->Rotate();
      EXPECT_TRUE(file.ok() || absl::IsFailedPrecondition(file.status())) << file.status();
    });
    absl::SleepFor(absl::Milliseconds(2));
    appends.LetGo();
    // The moment that the write is over, before the rotation is awake.
    while (journal->figures().writes == 0) continue;
    EXPECT_TRUE(journal->Close().ok());
    recording.join();
    rotating.join();
    const ReadBack read = ReadJournal(storage);
    ASSERT_TRUE(read.status.ok()) << round << ": " << read.status;
    ASSERT_EQ(read.numbers, Numbers(1, 1));
  }
}

TEST(Journal, WithoutOneNothingIsTouched) {
  JournalOptions options = TestJournalOptions(JournalMode::kOff);
  options.least_number = 12;
  const auto journal = Journal::Open(nullptr, options).value();
  EXPECT_EQ(journal->first_number(), 12u);
  journal->Record(OwnedEvent(1).event);
  EXPECT_EQ(journal->Rotate().value(), 0u);
  EXPECT_TRUE(journal->SyncThrough(100).ok());
  EXPECT_TRUE(journal->RemoveBefore(100).ok());
  EXPECT_TRUE(journal->Close().ok());
  EXPECT_TRUE(journal->status().ok());
}

TEST(Journal, ADiskThatTakesNothingIsKnownAtTheStart) {
  for (uint64_t operation = 1; operation <= 4; ++operation) {
    FaultyStorage storage;
    storage.RefuseFrom(operation, EROFS);
    EXPECT_TRUE(absl::IsPermissionDenied(
        Journal::Open(&storage, TestJournalOptions(JournalMode::kBuffered)).status()));
  }
}

TEST(Journal, OtherFilesAreNobodysBusiness) {
  FaultyStorage storage;
  for (const char* name :
       {"journal.1", "journal.00000000001", "journal.000000000x", "journal.0000000005.part", "notes"}) {
    storage.Put(name, "x");
  }
  {
    const auto journal = Journal::Open(&storage, TestJournalOptions(JournalMode::kBuffered)).value();
    EXPECT_EQ(FileNames(storage), "1");
  }
  // But for what has the name of a file of the journal, and is none.
  ASSERT_TRUE(storage.MakeFolder("journal.0000000007").ok());
  const absl::Status folder = Journal::Open(&storage, TestJournalOptions(JournalMode::kBuffered, 2)).status();
  EXPECT_EQ(folder.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(folder.message()), HasSubstr("journal.0000000007 is a folder"));
}

// A process that is killed, really, on a disk, really: all that it has acknowledged is there.
TEST(Journal, AKilledProcessLosesNothing) {
  const std::string folder = ::testing::TempDir() + "journal_test." + std::to_string(getpid());
  std::filesystem::remove_all(folder);
  uint64_t next = 1;
  for (uint64_t start = 1; start <= 3; ++start) {
    int acknowledged[2];
    ASSERT_EQ(pipe(acknowledged), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(acknowledged[0]);
      const auto storage = OpenStorage(folder);
      if (!storage.ok()) _exit(1);
      JournalOptions options = TestJournalOptions(JournalMode::kBuffered, start);
      options.file_bytes = 100'000;
      const auto journal = Journal::Open(storage->get(), options);
      if (!journal.ok()) _exit(1);
      for (uint64_t number = (*journal)->first_number();; ++number) {
        (*journal)->Record(OwnedEvent(number, 3000).event);
        if (!(*journal)->status().ok() || write(acknowledged[1], &number, sizeof number) != sizeof number) {
          _exit(1);
        }
      }
    }
    close(acknowledged[1]);
    uint64_t last = 0;
    for (int k = 0; k < 200; ++k) {
      ASSERT_EQ(read(acknowledged[0], &last, sizeof last), ssize_t{sizeof last});
    }
    kill(child, SIGKILL);
    while (read(acknowledged[0], &last, sizeof last) == ssize_t{sizeof last}) continue;
    close(acknowledged[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_GE(last, next + 199);
    const ReadBack read = ReadJournal(*OpenStorageToRead(folder).value());
    EXPECT_TRUE(read.status.ok()) << read.status;
    ASSERT_GE(read.numbers.size(), last);
    next = read.end.next_number;
    EXPECT_EQ(read.numbers, Numbers(1, next - 1));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace foreshard
