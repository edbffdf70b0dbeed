// The golden files: what earlier programs have written is read to the same values, and today's
// writers write the same bytes. A change of format cannot go unseen: it fails here until its
// version is raised, the reader takes both, and new files are written beside the old ones
// (tests/golden/README.md).
#include "common/net/job_parts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/run_description.h"
#include "tests/golden/conversation.h"
#include "tests/golden/messages.h"
#include "tests/golden/samples.h"
#include "tests/golden/stored.h"
#include "tests/server/durable_run.h"

namespace foreshard::golden {
namespace {

TEST(Golden, TodaysWritersWriteTheSameBytes) {
  const Files now = Samples();
  for (const auto& [path, bytes] : now) {
    ASSERT_EQ(Stored().count(path), 1u) << path << ": run write_golden and look at what has changed";
    EXPECT_TRUE(Stored().at(path) == bytes) << path << ": its bytes have changed";
  }
  for (const auto& [path, bytes] : Stored()) EXPECT_EQ(now.count(path), 1u) << path << ": nothing writes it";
}

TEST(Golden, MessagesAreReadToTheSameValues) {
  const Files stored = Under("messages");
  for (const auto& [name, message] : SampleMessages()) {
    ASSERT_EQ(stored.count(name), 1u) << name;
    std::unique_ptr<google::protobuf::Message> read(message->New());
    ASSERT_TRUE(read->ParseFromString(stored.at(name))) << name;
    EXPECT_EQ(read->DebugString(), message->DebugString());
    // No field of the file is one that today's program does not know.
    EXPECT_TRUE(read->GetReflection()->GetUnknownFields(*read).empty()) << name;
  }
}

TEST(Golden, RecordsOfEveryKindOfEventAreReadToTheSameValues) {
  for (const auto& [name, bytes] : Under("records")) {
    ByteSpan piece;
    uint64_t size = 0;
    const auto event = ParseRecord(AsBytes(bytes), &piece, &size);
    ASSERT_TRUE(event.ok()) << name << event.status();
    EXPECT_EQ(size, bytes.size());
    EXPECT_EQ(event->codec, 3);
    EXPECT_EQ(event->reply_codec, 1);
    EXPECT_EQ(event->segment, 4u);
    EXPECT_EQ(event->worker, 5u);
    EXPECT_EQ(event->incarnation, 6u);
    EXPECT_EQ(event->sequence, 7u);
    EXPECT_EQ(event->ticket, 8u);
    EXPECT_EQ(event->held_version, 9u);
    EXPECT_EQ(event->argument, 10u);
    EXPECT_EQ(event->number, 11u);
    EXPECT_EQ(std::string(piece.begin(), piece.end()), "sixteen bytes...");
  }
}

TEST(Golden, SavedSegmentsAreLoadedAndSavedAgain) {
  const Files stored = Under("segments");
  for (const Kind& kind : Kinds()) {
    SCOPED_TRACE(kind.name());
    const auto segment = MakeSegment(kind);
    const absl::Status loaded = segment->Load(stored.at(kind.name()));
    ASSERT_TRUE(loaded.ok()) << loaded;
    EXPECT_GT(segment->version(), 0u);
    EXPECT_EQ(segment->Save(), stored.at(kind.name()));
  }
}

TEST(Golden, SavedDealersAreLoadedAndSavedAgain) {
  const Files stored = Under("dealers");
  Dealer asynchronous(golden::MakeDealerOptions());
  ASSERT_TRUE(asynchronous.Load(stored.at("asynchronous")).ok());
  EXPECT_EQ(asynchronous.Save(), stored.at("asynchronous"));
  EXPECT_GT(asynchronous.next_ticket(), 0u);
  Dealer rounds({.batches_per_epoch = 10, .epochs = 2, .synchronous_workers = 2, .views = true});
  ASSERT_TRUE(rounds.Load(stored.at("rounds")).ok());
  EXPECT_EQ(rounds.Save(), stored.at("rounds"));
  EXPECT_EQ(rounds.completed_tickets(), 1u);
}

TEST(Golden, RecordsLeadToTheSameState) {
  const Files stored = Under("events");
  for (const Kind& kind : Kinds()) {
    SCOPED_TRACE(kind.name());
    const auto segment = MakeSegment(kind);
    uint64_t events = 0;
    for (ByteSpan records = AsBytes(stored.at(kind.name())); !records.empty(); ++events) {
      ByteSpan piece;
      uint64_t size = 0;
      const auto event = ParseRecord(records, &piece, &size);
      ASSERT_TRUE(event.ok()) << event.status();
      const absl::Status replayed = segment->Replay(*event);
      ASSERT_TRUE(replayed.ok()) << replayed;
      records.remove_prefix(size);
    }
    EXPECT_GT(events, 3u);
    EXPECT_TRUE(segment->initialised());
  }
}

TEST(Golden, AServersFolderIsRecovered) {
  const auto storage = StoredServerFolder();
  const UndisturbedRun run("dana_zero", false, kEvents);
  const Found found = Recover(*storage, run);
  ASSERT_TRUE(found.status.ok()) << found.status;
  EXPECT_EQ(found.through, kEvents);
  EXPECT_FALSE(found.checkpoint.empty());
  EXPECT_GT(found.replayed, 0u);
  for (const uint32_t id : found.machines->machines()) {
    EXPECT_TRUE(found.machines->Save(id) == run.StateAt(id, kEvents)) << id;
  }
}

TEST(Golden, TheDescriptionOfARunIsRead) {
  FaultyStorage storage;
  storage.Put(kRunFile, Stored().at(kRunFile));
  const auto found = ReadRunDescription(storage);
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
  EXPECT_TRUE(CheckRun(**found, ConversationJob(), 0, "here").ok());
  EXPECT_EQ((*found)->train_examples(), kConversationExamples);
  EXPECT_EQ(FromProto((*found)->model()).value().fingerprint(), ConversationSchema().fingerprint());
}

}  // namespace
}  // namespace foreshard::golden
