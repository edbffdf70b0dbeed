#include "server/checkpoint_files.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/event.h"
#include "tests/common/storage/faulty_storage.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Schema TestSchema() {
  return Schema::Create({{"a.weight", {10, 10}, TensorKind::kTrainable, true},
                         {"a.bias", {10}, TensorKind::kTrainable, false},
                         {"none", {0, 3}, TensorKind::kTrainable, false},
                         {"b.weight", {150}, TensorKind::kTrainable, true},
                         {"b.mean", {7}, TensorKind::kStatistic, false}})
      .value();
}

ShardPlan TestPlan(uint32_t shards = 2) {
  return ShardPlan::Create(TestSchema(), {.shards = shards, .segment_elements = 64, .block_elements = 32})
      .value();
}

CheckpointAbout About(uint32_t shard = 1, uint32_t shards = 2) {
  return {.identity =
              {.protocol = 3, .shard = shard, .shards = shards, .job = 0x0b, .schema = 0x5c, .plan = 0x91},
          .incarnation = 77,
          .step = 40,
          .epoch = 2,
          .journal_file = 5,
          .extra = {{"note", "\u00fcber"}}};
}

// Parameter k of the whole vector.
float ValueAt(uint64_t k, float scale = 1) { return scale * static_cast<float>(k) + 0.25f; }

std::vector<float> Theta(const SegmentPlan& segment, float scale = 1) {
  std::vector<float> theta(segment.elements);
  for (uint64_t k = 0; k < theta.size(); ++k) theta[k] = ValueAt(segment.begin + k, scale);
  return theta;
}

std::string StateOf(uint32_t segment, uint64_t number) {
  return absl::StrCat("state of ", segment, " at ", number);
}

// Writes the states of the shard at number, number + 1, ...
absl::StatusOr<CheckpointWriter::Committed> Write(Storage* storage, uint64_t number, uint32_t keep = 2,
                                                  CheckpointAbout about = About()) {
  const Schema schema = TestSchema();
  const ShardPlan plan = TestPlan(about.identity.shards);
  auto writer = CheckpointWriter::Begin(storage, about, schema, plan);
  if (!writer.ok()) return writer.status();
  for (const uint32_t id : plan.SegmentsOfShard(about.identity.shard)) {
    const absl::Status added = (*writer)->AddSegment(
        id, number + id, Theta(plan.segments()[id], static_cast<float>(number)), StateOf(id, number + id));
    if (!added.ok()) return added;
  }
  if (absl::Status added = (*writer)->AddDealer(number, StateOf(kDealerSegment, number)); !added.ok()) {
    return added;
  }
  return (*writer)->Commit(keep);
}

std::vector<std::string> Names(const Storage& storage, absl::string_view folder = "") {
  std::vector<std::string> names;
  const auto listed = storage.List(folder).value();
  for (const StorageEntry& entry : listed) names.push_back(entry.name);
  return names;
}

// Whether the checkpoint is, to the byte, what Write wrote at this number.
void ExpectWhole(const Checkpoint& checkpoint, uint64_t number, uint32_t shard = 1, uint32_t shards = 2) {
  const ShardPlan plan = TestPlan(shards);
  for (const uint32_t id : plan.SegmentsOfShard(shard)) {
    const auto saved = checkpoint.ReadState(id);
    ASSERT_TRUE(saved.ok()) << saved.status();
    EXPECT_EQ(saved->number, number + id);
    EXPECT_EQ(saved->state, StateOf(id, number + id));
  }
  EXPECT_EQ(checkpoint.ReadState(kDealerSegment)->state, StateOf(kDealerSegment, number));
  const auto parameters = checkpoint.OpenParameters();
  ASSERT_TRUE(parameters.ok()) << parameters.status();
  uint64_t at = plan.segments()[plan.SegmentsOfShard(shard).front()].begin;
  for (const SafetensorsTensor& tensor : parameters->tensors()) {
    std::vector<float> values(tensor.elements);
    ASSERT_TRUE(parameters->ReadFloats(tensor, 0, absl::MakeSpan(values)).ok());
    for (const float value : values) EXPECT_EQ(value, ValueAt(at++, static_cast<float>(number)));
  }
}

TEST(ShardTensors, WholeOnesKeepTheirNamesAndPartsSayWhichTheyAre) {
  const auto describe = [](const ShardPlan& plan, uint32_t shard) {
    std::string text;
    for (const SafetensorsTensor& tensor : ShardTensors(TestSchema(), plan, shard)) {
      absl::StrAppend(&text, tensor.name, " ");
      for (const uint64_t dimension : tensor.shape) absl::StrAppend(&text, dimension, " ");
    }
    return text;
  };
  // Segments of at most 64 elements: their bounds do not matter.
  EXPECT_EQ(describe(TestPlan(1), 0), "a.weight 10 10 a.bias 10 none 0 3 b.weight 150 b.mean 7 ");
  EXPECT_EQ(describe(TestPlan(2), 0), "a.weight 10 10 a.bias 10 none 0 3 b.weight[0:18] 18 ");
  EXPECT_EQ(describe(TestPlan(2), 1), "b.weight[18:150] 132 b.mean 7 ");
  // One that is cut twice.
  EXPECT_EQ(describe(TestPlan(4), 1), "a.weight[65:100] 35 a.bias 10 none 0 3 b.weight[0:20] 20 ");
  const Schema empty_last = Schema::Create({{"a", {300}}, {"z", {0}}}).value();
  const ShardPlan plan =
      ShardPlan::Create(empty_last, {.shards = 2, .segment_elements = 200, .block_elements = 100}).value();
  EXPECT_EQ(ShardTensors(empty_last, plan, 0).size(), 1u);
  EXPECT_EQ(ShardTensors(empty_last, plan, 1).back().name, "z");
}

TEST(CheckpointFiles, ReadsBackWhatWasWritten) {
  FaultyStorage storage;
  const auto committed = Write(&storage, 100);
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_EQ(committed->name, "checkpoint.0000000001");
  EXPECT_EQ(committed->journal_file, 5u);
  EXPECT_TRUE(committed->removal.ok());
  EXPECT_THAT(Names(storage), ElementsAre("checkpoint.0000000001"));
  EXPECT_THAT(Names(storage, "checkpoint.0000000001"),
              ElementsAre("manifest.json", "parameters-00002-of-00002.safetensors", "state.bin"));
  std::vector<PassedOver> passed_over;
  const auto checkpoint = Checkpoint::OpenNewest(storage, About().identity, &passed_over);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE(passed_over.empty());
  EXPECT_EQ((*checkpoint)->name(), committed->name);
  EXPECT_EQ((*checkpoint)->manifest().about, About());
  ExpectWhole(**checkpoint, 100);
  // Replay begins behind the state that is the oldest: the dealer's.
  EXPECT_EQ((*checkpoint)->manifest().first_number(), 101u);
  EXPECT_EQ((*checkpoint)->manifest().next_number(), 100 + TestPlan().SegmentsOfShard(1).back() + 1u);
  EXPECT_TRUE(absl::IsNotFound((*checkpoint)->ReadState(0).status()));  // shard 0's
  EXPECT_THAT((*checkpoint)->OpenParameters()->metadata().at("foreshard.shard"), "1 of 2");
}

TEST(CheckpointFiles, OneThatStandsAloneNeedsNoJournal) {
  FaultyStorage storage;
  CheckpointAbout about = About();
  about.journal_file = 0;
  EXPECT_EQ(Write(&storage, 100, 1, about)->journal_file, 0u);
  const auto checkpoint = Checkpoint::OpenNewest(storage, about.identity).value();
  const uint64_t next = checkpoint->manifest().next_number();
  EXPECT_EQ(checkpoint->manifest().first_number(), next);
  // What a later start writes behind it stays as long as it does.
  const auto second = Write(&storage, 200, 2, About());
  EXPECT_EQ(second->journal_file, 5u);
  EXPECT_EQ(second->journal_number, next);
  EXPECT_EQ(Write(&storage, 300, 2, About())->journal_number, ~uint64_t{0});
}

TEST(CheckpointFiles, TheNewestAreKept) {
  FaultyStorage storage;
  for (uint64_t k = 1; k <= 5; ++k) {
    CheckpointAbout about = About();
    about.journal_file = 10 * k;
    const auto committed = Write(&storage, k, 3, about);
    ASSERT_TRUE(committed.ok());
    EXPECT_EQ(committed->journal_file, k <= 3 ? 10 : 10 * (k - 2));
  }
  EXPECT_THAT(Checkpoint::List(storage).value(),
              ElementsAre("checkpoint.0000000003", "checkpoint.0000000004", "checkpoint.0000000005"));
  ExpectWhole(*Checkpoint::OpenNewest(storage, About().identity).value(), 5);
  ExpectWhole(*Checkpoint::Open(storage, "checkpoint.0000000004", About().identity).value(), 4);
}

TEST(CheckpointFiles, TheJournalOfOneThatCannotBeReadNowStays) {
  FaultyStorage storage;
  CheckpointAbout about = About();
  ASSERT_EQ(Write(&storage, 1, 2, about)->journal_file, 5u);
  about.journal_file = 6;
  storage.FailReads("checkpoint.0000000001/manifest.json", EMFILE);
  const auto committed = Write(&storage, 2, 2, about);
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_EQ(committed->journal_file, 0u);
  EXPECT_TRUE(absl::IsResourceExhausted(committed->removal)) << committed->removal;
  EXPECT_EQ(Checkpoint::List(storage)->size(), 2u);
}

// A file format: these bytes may never change.
TEST(CheckpointFiles, BytesArePinned) {
  CheckpointManifest manifest = {
      .index = 12,
      .about = About(),
      .states = {{.segment = 0, .number = 81234}, {.segment = kDealerSegment, .number = 81299}},
      .files = {{.name = "state.bin", .bytes = 4711, .checksum = 0xabc}}};
  const std::string expected = R"({
  "format": "foreshard checkpoint",
  "format_version": 1,
  "checkpoint": 12,
  "protocol": 3,
  "job": "000000000000000b",
  "schema": "000000000000005c",
  "plan": "0000000000000091",
  "shard": 1,
  "shards": 2,
  "incarnation": 77,
  "step": 40,
  "epoch": 2,
  "journal_file": 5,
  "states": [
    {
      "segment": 0,
      "number": 81234
    },
    {
      "segment": "dealer",
      "number": 81299
    }
  ],
  "files": [
    {
      "name": "state.bin",
      "bytes": 4711,
      "xxh3": "0000000000000abc"
    }
  ],
  "extra": {
    "note": "über"
  },
  "xxh3": "3abdc613c69d97c5"
}
)";
  EXPECT_EQ(EncodeManifest(manifest).value(), expected);
  EXPECT_EQ(ParseManifest(expected).value(), manifest);
  // The file of states.
  FaultyStorage storage;
  ASSERT_TRUE(Write(&storage, 100).ok());
  const std::string states = storage.Read("checkpoint.0000000001/state.bin").value();
  const uint32_t first = TestPlan().SegmentsOfShard(1).front();
  const std::string state = StateOf(first, 100 + first);
  ByteWriter record;
  record.Put<uint32_t>(first);
  record.Put<uint32_t>(0);
  record.Put<uint64_t>(100 + first);
  const std::string body = record.Take() + state;
  ByteWriter length, checksum;
  length.Put<uint64_t>(body.size() + 8);
  checksum.Put(Checksum(AsBytes(body)));
  const std::string begin =
      std::string("FSSTATE\n\1\0\0\0\0\0\0\0", 16) + length.data() + body + checksum.data();
  EXPECT_EQ(states.substr(0, begin.size()), begin);
}

TEST(CheckpointFiles, EveryFlippedBitIsSeenAndTheOlderOneTaken) {
  FaultyStorage storage;
  ASSERT_TRUE(Write(&storage, 1).ok());
  ASSERT_TRUE(Write(&storage, 2).ok());
  for (const std::string& file : Names(storage, "checkpoint.0000000002")) {
    const std::string path = "checkpoint.0000000002/" + file;
    for (uint64_t bit = 0; bit < storage.Size(path).value() * 8; ++bit) {
      storage.Flip(path, bit);
      std::vector<PassedOver> passed_over;
      const auto checkpoint = Checkpoint::OpenNewest(storage, About().identity, &passed_over);
      storage.Flip(path, bit);
      ASSERT_TRUE(checkpoint.ok()) << path << " bit " << bit << ": " << checkpoint.status();
      ASSERT_EQ((*checkpoint)->name(), "checkpoint.0000000001") << path << " bit " << bit;
      ASSERT_EQ(passed_over.size(), 1u);
      EXPECT_TRUE(absl::IsDataLoss(passed_over[0].why)) << passed_over[0].why;
      EXPECT_THAT(std::string(passed_over[0].why.message()), HasSubstr("/faulty/" + path));
    }
  }
  ExpectWhole(*Checkpoint::OpenNewest(storage, About().identity).value(), 2);
}

TEST(CheckpointFiles, CutAndMissingFilesAreSeen) {
  FaultyStorage storage;
  ASSERT_TRUE(Write(&storage, 1).ok());
  ASSERT_TRUE(Write(&storage, 2).ok());
  for (const std::string& file : Names(storage, "checkpoint.0000000002")) {
    const std::string path = "checkpoint.0000000002/" + file;
    const std::string content = storage.Read(path).value();
    for (size_t bytes = 0; bytes < content.size(); ++bytes) {
      storage.Put(path, content.substr(0, bytes));
      ASSERT_EQ(Checkpoint::OpenNewest(storage, About().identity).value()->name(), "checkpoint.0000000001");
    }
    storage.Put(path, content + "\n");
    ASSERT_EQ(Checkpoint::OpenNewest(storage, About().identity).value()->name(), "checkpoint.0000000001");
    ASSERT_TRUE(storage.Remove(path).ok());
    std::vector<PassedOver> passed_over;
    ASSERT_EQ(Checkpoint::OpenNewest(storage, About().identity, &passed_over).value()->name(),
              "checkpoint.0000000001");
    EXPECT_TRUE(absl::IsNotFound(passed_over[0].why));
    EXPECT_THAT(std::string(passed_over[0].why.message()), HasSubstr(file));
    storage.Put(path, content);
  }
}

TEST(CheckpointFiles, WhatIsCutWhileItIsReadIsDamage) {
  FaultyStorage storage;
  ASSERT_TRUE(Write(&storage, 1).ok());
  const auto checkpoint = Checkpoint::OpenNewest(storage, About().identity).value();
  const std::string path = "checkpoint.0000000001/state.bin";
  const std::string content = storage.Read(path).value();
  for (size_t bytes = 0; bytes < content.size(); ++bytes) {
    storage.Put(path, content.substr(0, bytes));
    const absl::Status status = checkpoint->ReadState(kDealerSegment).status();  // the last one in it
    ASSERT_TRUE(absl::IsDataLoss(status)) << bytes << ": " << status;
    ASSERT_THAT(std::string(status.message()), HasSubstr("damaged meanwhile"));
  }
}

TEST(CheckpointFiles, WithoutAnyGoodOneItIsSaidWhy) {
  FaultyStorage storage;
  EXPECT_TRUE(absl::IsNotFound(Checkpoint::OpenNewest(storage, About().identity).status()));
  ASSERT_TRUE(storage.MakeFolder("checkpoint.0000000001.part").ok());
  std::vector<PassedOver> passed_over;
  EXPECT_TRUE(absl::IsNotFound(Checkpoint::OpenNewest(storage, About().identity, &passed_over).status()));
  EXPECT_THAT(std::string(passed_over[0].why.message()), HasSubstr("was never finished"));
  // A server that began anew beside broken checkpoints would lose them.
  ASSERT_TRUE(Write(&storage, 1).ok());
  storage.Flip("checkpoint.0000000002/state.bin", 200);
  const absl::Status none = Checkpoint::OpenNewest(storage, About().identity).status();
  EXPECT_TRUE(absl::IsDataLoss(none)) << none;
  EXPECT_THAT(std::string(none.message()), AllOf(HasSubstr("no checkpoint in"), HasSubstr("state.bin")));
}

TEST(CheckpointFiles, AnothersCheckpointIsRefusedByName) {
  FaultyStorage storage;
  ASSERT_TRUE(Write(&storage, 1).ok());
  const auto says = [&](StateIdentity identity, const std::string& text) {
    const absl::Status status = Checkpoint::OpenNewest(storage, identity).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("checkpoint.0000000001"), HasSubstr(text)));
  };
  StateIdentity identity = About().identity;
  identity.job = 1;
  says(identity, "another job");
  identity = About().identity;
  identity.shards = 4;
  says(identity, "another number of shards: 2 there, 4 here");
  identity = About().identity;
  identity.plan = 1;
  says(identity, "another shard plan");
  identity = About().identity;
  identity.protocol = 9;
  EXPECT_TRUE(Checkpoint::OpenNewest(storage, identity).ok());
}

// With the checksum put right, so that nothing but the content is wrong.
std::string Resealed(const std::string& text, const std::string& from, const std::string& to) {
  std::string changed = absl::StrReplaceAll(text, {{from, to}});
  EXPECT_NE(changed, text);
  changed.resize(changed.size() - 33);
  return changed + ",\n  \"xxh3\": \"" +
         absl::StrCat(absl::Hex(Checksum(AsBytes(changed)), absl::kZeroPad16)) + "\"\n}\n";
}

TEST(CheckpointManifest, WhatItSaysIsChecked) {
  FaultyStorage storage;
  ASSERT_TRUE(Write(&storage, 1).ok());
  const std::string path = "checkpoint.0000000001/manifest.json";
  const std::string text = storage.Read(path).value();
  const auto open = [&](const std::string& from, const std::string& to) {
    storage.Put(path, Resealed(text, from, to));
    return Checkpoint::OpenNewest(storage, About().identity).status();
  };
  EXPECT_TRUE(open("\"step\": 40", "\"step\": 41").ok());
  const absl::Status newer = open("\"format_version\": 1", "\"format_version\": 2");
  EXPECT_TRUE(absl::IsFailedPrecondition(newer)) << newer;
  EXPECT_THAT(std::string(newer.message()), HasSubstr("format 2, and this program reads only 1: a newer release wrote it"));
  const std::vector<std::pair<std::pair<std::string, std::string>, std::string>> cases = {
      {{"\"foreshard checkpoint\"", "\"another\""}, "not of a checkpoint"},
      {{"\"step\": 40", "\"step\": -40"}, "'step'"},
      {{"\"step\": 40", "\"step\": \"40\""}, "'step'"},
      {{"\"step\": 40", "\"steps\": 40"}, "'step'"},
      {{"\"epoch\": 2", "\"epoch\": 4294967296"}, "'epoch'"},
      {{"\"job\": \"0000", "\"job\": \"000"}, "'job'"},
      {{"\"segment\": \"dealer\"", "\"segment\": \"lead\""}, "'segment'"},
      {{"\"state.bin\"", "\"../state.bin\""}, "no name of a file"},
      {{"\"state.bin\"", "\"parameters-00002-of-00002.safetensors\""}, "bytes, and the manifest says"},
      {{"\"note\": \"\u00fcber\"", "\"note\": 7"}, "'note'"},
      {{"\"number\": 1\n", "\"number\": 2\n"}, "the manifest says"},
      {{"\"states\": [",
        "\"states\": ["
        "\n    {\"segment\": 0, \"number\": 0},"},
       "the manifest says segment 0"},
  };
  for (const auto& [change, says] : cases) {
    const absl::Status status = open(change.first, change.second);
    EXPECT_TRUE(absl::IsDataLoss(status)) << change.second << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  }
  for (const char* other : {"", "{}", "x"}) {
    storage.Put(path, other);
    EXPECT_TRUE(absl::IsDataLoss(Checkpoint::OpenNewest(storage, About().identity).status())) << other;
  }
}

TEST(CheckpointWriter, RefusesWhatDoesNotBelong) {
  FaultyStorage storage;
  const Schema schema = TestSchema();
  const ShardPlan plan = TestPlan();
  const std::vector<uint32_t> ids = plan.SegmentsOfShard(1);
  const auto begin = [&] { return CheckpointWriter::Begin(&storage, About(), schema, plan).value(); };
  {
    const auto writer = begin();
    EXPECT_TRUE(absl::IsInvalidArgument(writer->AddSegment(ids[1], 1, Theta(plan.segments()[ids[1]]), "")));
    // Final.
    EXPECT_TRUE(absl::IsInvalidArgument(writer->AddSegment(ids[0], 1, Theta(plan.segments()[ids[0]]), "")));
    EXPECT_TRUE(absl::IsInvalidArgument(writer->Commit(1).status()));
  }
  {
    const auto writer = begin();
    const absl::Status status = writer->AddSegment(ids[0], 1, std::vector<float>(3), "");
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("with 3 elements"));
  }
  {
    const auto writer = begin();
    ASSERT_TRUE(writer->AddDealer(1, "").ok());
    EXPECT_TRUE(absl::IsInvalidArgument(writer->AddDealer(1, "")));
  }
  {
    const auto writer = begin();
    ASSERT_TRUE(writer->AddSegment(ids[0], 1, Theta(plan.segments()[ids[0]]), "").ok());
    const absl::Status status = writer->Commit(1).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("1 of ", ids.size(), " segments")));
  }
  CheckpointAbout about = About();
  about.extra["bad"] = "\xff";
  EXPECT_TRUE(absl::IsInvalidArgument(Write(&storage, 1, 1, about).status()));
  // Nothing stays behind.
  EXPECT_THAT(Names(storage), ElementsAre());
}

TEST(CheckpointWriter, ADiskThatRefusesLeavesTheOlderOnes) {
  // As many operations as a whole one takes.
  FaultyStorage counted;
  ASSERT_TRUE(Write(&counted, 1).ok());
  const uint64_t operations = counted.operations();
  for (const int error : {ENOSPC, EROFS, EIO}) {
    for (uint64_t operation = 1; operation <= operations; ++operation) {
      FaultyStorage storage;
      ASSERT_TRUE(Write(&storage, 1).ok());
      storage.RefuseFrom(operations + operation, error);
      const auto committed = Write(&storage, 2);
      EXPECT_FALSE(committed.ok()) << operation;
      EXPECT_THAT(std::string(committed.status().message()), HasSubstr("/faulty/"));
      const auto checkpoint = Checkpoint::OpenNewest(storage, About().identity);
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
      // Only the last sync, of the name, fails after the checkpoint is there.
      ExpectWhole(**checkpoint, operation == operations ? 2 : 1);
    }
  }
}

// A checkpoint that no start could read would take the place of one that it can.
TEST(CheckpointWriter, AManifestThatNobodyWouldReadLeavesTheOlderOnes) {
  FaultyStorage storage;
  ASSERT_TRUE(Write(&storage, 1, 1).ok());
  CheckpointAbout about = About();
  about.extra["lead"] = std::string(kMaxManifestBytes + 1, 'x');
  const absl::Status refused = Write(&storage, 2, 1, about).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no more than 67108864 are read again"));
  EXPECT_THAT(Names(storage), ElementsAre("checkpoint.0000000001"));
  CheckpointManifest many;
  many.states.resize((1 << 20) + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(EncodeManifest(many).status()));
}

TEST(CheckpointWriter, AManifestThatReadsBackOtherwiseLeavesTheOlderOnes) {
  FaultyStorage storage;
  ASSERT_TRUE(Write(&storage, 1, 1).ok());
  const std::string path = "checkpoint.0000000002.part/manifest.json";
  storage.AfterEach([&](const FaultyStorage::Operation& operation) {
    if (operation.kind == FaultyStorage::Kind::kSync && operation.path == path) storage.Flip(path, 100);
  });
  const absl::Status refused = Write(&storage, 2, 1).status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("does not read back as it was written"));
  EXPECT_THAT(Names(storage), ElementsAre("checkpoint.0000000001"));
}

TEST(CheckpointWriter, AFullDiskIsRefusedWithTheFigures) {
  FaultyStorage storage;
  storage.LimitBytes(100);
  const absl::Status status = Write(&storage, 1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("are free for /faulty/"), HasSubstr("keep fewer checkpoints")));
  EXPECT_EQ(storage.operations(), 0u);
  const Schema schema = TestSchema();
  const ShardPlan plan = TestPlan();
  storage.LimitBytes(10'000);
  EXPECT_TRUE(CheckpointWriter::Begin(&storage, About(), schema, plan).ok());
  EXPECT_TRUE(
      absl::IsResourceExhausted(CheckpointWriter::Begin(&storage, About(), schema, plan, 10'000).status()));
}

TEST(CheckpointWriter, WhatWasLeftHalfDoneIsRemoved) {
  FaultyStorage storage;
  for (const char* name : {"checkpoint.0000000007.part", "checkpoint.0000000003.old", "other.part"}) {
    ASSERT_TRUE(storage.MakeFolder(name).ok());
    storage.Put(absl::StrCat(name, "/x"), "x");
  }
  // A number is never given twice.
  EXPECT_EQ(Write(&storage, 1)->name, "checkpoint.0000000008");
  EXPECT_THAT(Names(storage), ElementsAre("checkpoint.0000000008", "other.part"));
}

// Power is cut after every operation of three checkpoints one after the other.
TEST(CheckpointWriter, NothingHalfWrittenIsEverTaken) {
  FaultyStorage storage;
  uint64_t committed = 0, begun = 0;
  int cuts = 0;
  storage.AfterEach([&](const FaultyStorage::Operation&) {
    for (uint64_t seed = 0; seed < 30; ++seed) {
      const auto found = storage.CutPower(seed);
      std::vector<PassedOver> passed_over;
      const auto checkpoint = Checkpoint::OpenNewest(*found, About().identity, &passed_over);
      ++cuts;
      if (!checkpoint.ok()) {
        ASSERT_TRUE(absl::IsNotFound(checkpoint.status())) << checkpoint.status();
        ASSERT_EQ(committed, 0u);
        continue;
      }
      uint64_t number = 0;
      for (uint64_t k = std::max<uint64_t>(committed, 1); k <= begun; ++k) {
        if ((*checkpoint)->ReadState(kDealerSegment)->number == k) number = k;
      }
      ASSERT_NE(number, 0u) << "committed " << committed << ", begun " << begun << ", found "
                            << (*checkpoint)->name();
      ExpectWhole(**checkpoint, number);
    }
  });
  for (begun = 1; begun <= 3; ++begun) {
    ASSERT_TRUE(Write(&storage, begun, 2).ok());
    committed = begun;
  }
  EXPECT_GT(cuts, 1000);
}

}  // namespace
}  // namespace foreshard
