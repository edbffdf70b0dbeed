// What a reader makes of journals that are cut, changed, incomplete or another's.
#include "server/journal_reader.h"

#include <cerrno>
#include <cstring>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/storage/faulty_storage.h"
#include "tests/server/journal_harness.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Two starts, three files: events 1 to 6 in two files, 7 to 12 in the last, which is open.
std::unique_ptr<FaultyStorage> ThreeFiles(JournalMode mode) {
  auto storage = std::make_unique<FaultyStorage>();
  {
    const auto journal = Journal::Open(storage.get(), TestJournalOptions(mode, 1)).value();
    RecordAll(*journal, 1, 3);
    EXPECT_TRUE(journal->Rotate().ok());
    RecordAll(*journal, 4, 6);
  }
  const auto journal = Journal::Open(storage.get(), TestJournalOptions(mode, 2)).value();
  RecordAll(*journal, 7, 12);
  return storage->KillProcess();
}

// What is left when one byte after the other is taken off its end, or a bit of it is another.
std::unique_ptr<FaultyStorage> With(const FaultyStorage& storage, absl::string_view file,
                                    std::string content) {
  auto changed = storage.KillProcess();
  changed->Put(file, std::move(content));
  return changed;
}

class ReaderModes : public ::testing::TestWithParam<JournalMode> {};
INSTANTIATE_TEST_SUITE_P(Both, ReaderModes, ::testing::Values(JournalMode::kBuffered, JournalMode::kSynced),
                         [](const auto& info) {
                           return info.param == JournalMode::kBuffered ? "Buffered" : "Synced";
                         });

// The format is a file format: these bytes may never change.
TEST(JournalFile, BytesArePinned) {
  const JournalFileHeader header = {
      .identity = {.protocol = 3, .shard = 4, .shards = 5, .job = 6, .schema = 7, .plan = 8},
      .mode = JournalMode::kSynced,
      .incarnation = 9,
      .sequence = 10,
      .first_number = 11};
  EXPECT_EQ(absl::BytesToHexString(EncodeJournalHeader(header)),
            "46534a524e4c0d0a"
            "0100"
            "02"
            "01"
            "03000000"
            "04000000"
            "05000000"
            "0600000000000000"
            "0700000000000000"
            "0800000000000000"
            "0900000000000000"
            "0a00000000000000"
            "0b00000000000000"
            "0000000000000000"
            "0ed2b8a951a2ee43");
  const std::string bytes = EncodeJournalHeader(header);
  EXPECT_EQ(bytes.size(), kJournalHeaderBytes);
  EXPECT_EQ(ParseJournalHeader(AsBytes(bytes)).value(), header);
  EXPECT_EQ(
      absl::BytesToHexString(EncodeJournalMark({.closed = false, .sequence = 10, .synced_bytes = 288})),
      "1c000000"
      "01000000"
      "0a00000000000000"
      "2001000000000000"
      "5d8b84e6ffde4b48");
  EXPECT_EQ(
      absl::BytesToHexString(EncodeJournalMark({.closed = true, .sequence = 10, .synced_bytes = 288})),
      "1c000000"
      "03000000"
      "0a00000000000000"
      "2001000000000000"
      "7ae605c0ca064fa9");
  EXPECT_EQ(NameOfJournalFile(1), "journal.0000000001");
}

TEST_P(ReaderModes, ACutEndOfTheLastFileIsTorn) {
  const auto storage = ThreeFiles(GetParam());
  const std::string name = NameOfJournalFile(3);
  const std::string content = storage->Read(name).value();
  // Where each record of it ends, by the reader's own word.
  std::vector<uint64_t> ends;
  for (uint64_t bytes = kJournalHeaderBytes; bytes <= content.size(); ++bytes) {
    const auto cut = With(*storage, name, content.substr(0, bytes));
    const ReadBack read = ReadJournal(*cut);
    ASSERT_TRUE(read.status.ok()) << bytes << " " << read.status;
    ASSERT_EQ(read.numbers, Numbers(1, read.end.next_number - 1)) << bytes;
    if (ends.size() + 6 < read.numbers.size()) ends.push_back(bytes);
    // Where there is a rest, it is said what it is.
    ASSERT_LE(read.end.torn.size(), 1u);
    if (!read.end.torn.empty()) {
      const JournalEnd::Torn& torn = read.end.torn.front();
      EXPECT_EQ(torn.file, name);
      EXPECT_EQ(torn.offset + torn.bytes, bytes);
      EXPECT_FALSE(torn.whole_file);
    }
    // And a writer goes on behind what is whole.
    {
      const auto journal = Journal::Open(cut.get(), TestJournalOptions(GetParam(), 3)).value();
      EXPECT_EQ(journal->first_number(), read.end.next_number);
      RecordAll(*journal, journal->first_number(), journal->first_number() + 1);
    }
    const ReadBack again = ReadJournal(*cut);
    ASSERT_TRUE(again.status.ok()) << bytes << " " << again.status;
    EXPECT_EQ(again.numbers, Numbers(1, read.end.next_number + 1));
    EXPECT_TRUE(again.end.torn.empty());
  }
  EXPECT_EQ(ends.size(), 6u);
}

TEST_P(ReaderModes, ALastFileWithoutAWholeHeaderWasJustBegun) {
  const auto storage = ThreeFiles(GetParam());
  storage->Put(NameOfJournalFile(3), "");
  const std::string header =
      EncodeJournalHeader({.identity = kTestIdentity, .incarnation = 2, .sequence = 3, .first_number = 7});
  for (uint64_t bytes = 0; bytes <= header.size(); ++bytes) {
    std::string content = header.substr(0, bytes);
    if (bytes == header.size()) content.back() ^= 1;
    const auto cut = With(*storage, NameOfJournalFile(3), content);
    const ReadBack read = ReadJournal(*cut);
    EXPECT_TRUE(read.status.ok()) << read.status;
    EXPECT_EQ(read.numbers, Numbers(1, 6));
    ASSERT_EQ(read.end.torn.size(), 1u);
    EXPECT_TRUE(read.end.torn[0].whole_file);
    const auto journal = Journal::Open(cut.get(), TestJournalOptions(GetParam(), 3)).value();
    EXPECT_EQ(journal->figures().file, 3u);
    RecordAll(*journal, 7, 7);
    EXPECT_EQ(ReadJournal(*cut).numbers, Numbers(1, 7));
  }
  // The only one.
  FaultyStorage first;
  first.Put(NameOfJournalFile(1), "FSJ");
  EXPECT_TRUE(ReadJournal(first).status.ok());
  EXPECT_EQ(Journal::Open(&first, TestJournalOptions(GetParam())).value()->figures().file, 1u);
}

TEST_P(ReaderModes, EveryFlippedBitIsSeenAndNamed) {
  const auto storage = ThreeFiles(GetParam());
  std::map<std::string, int> outcomes;
  for (uint64_t file = 1; file <= 3; ++file) {
    const std::string name = NameOfJournalFile(file);
    const std::string content = storage->Read(name).value();
    for (uint64_t bit = 0; bit < content.size() * 8; ++bit) {
      const auto flipped = storage->KillProcess();
      flipped->Flip(name, bit);
      const ReadBack read = ReadJournal(*flipped);
      // Nothing that was not recorded, whatever else.
      ASSERT_EQ(read.numbers, Numbers(1, read.numbers.size())) << name << " bit " << bit;
      const std::string place = absl::StrCat(name, " bit ", bit, ": ", read.status.ToString());
      if (read.status.ok()) {
        // Only what may be an append that was under way: the last one.
        EXPECT_EQ(file, 3u) << place;
        EXPECT_GE(read.numbers.size(), 11u) << place;
        EXPECT_EQ(read.end.torn.size(), 1u) << place;
      } else {
        EXPECT_TRUE(absl::IsDataLoss(read.status)) << place;
        EXPECT_THAT(std::string(read.status.message()),
                    AllOf(HasSubstr("/faulty/" + name), HasSubstr(", offset ")))
            << place;
        // A writer does not build upon it, if it is in the file that it looks at.
        if (file == 3) {
          EXPECT_TRUE(
              absl::IsDataLoss(Journal::Open(flipped.get(), TestJournalOptions(GetParam(), 3)).status()));
        }
      }
      ++outcomes[read.status.ok() ? "torn" : absl::StrCat("damaged ", file)];
    }
  }
  // The last record is 100 bytes, and a mark before it, of a synced one, 32.
  EXPECT_EQ(outcomes["torn"], GetParam() == JournalMode::kBuffered ? 800 : 800 + 256);
  EXPECT_GT(outcomes["damaged 1"], 8 * 300);
  EXPECT_GT(outcomes["damaged 2"], 8 * 300);
  EXPECT_GT(outcomes["damaged 3"], 8 * 500);
}

TEST_P(ReaderModes, FilesInTheMiddleMustBeWhole) {
  const auto storage = ThreeFiles(GetParam());
  const auto says = [&](const FaultyStorage& changed, const std::string& file, const std::string& text) {
    const ReadBack read = ReadJournal(changed);
    EXPECT_TRUE(absl::IsDataLoss(read.status)) << read.status;
    EXPECT_THAT(std::string(read.status.message()), AllOf(HasSubstr(file), HasSubstr(text)));
  };
  const std::string second = storage->Read(NameOfJournalFile(2)).value();
  for (const size_t bytes : {size_t{0}, size_t{40}}) {
    says(*With(*storage, NameOfJournalFile(2), second.substr(0, bytes)), "journal.0000000002, offset 0",
         "header is cut");
  }
  // Cut where a record ends: nothing in the file itself is wrong.
  says(*With(*storage, NameOfJournalFile(2), second.substr(0, kJournalHeaderBytes + 100)),
       "journal.0000000003, offset 0", "events 5 to 6 are in no file");
  says(*With(*storage, NameOfJournalFile(2), second.substr(0, kJournalHeaderBytes + 110)),
       "journal.0000000002, offset 188", "only the last file");
  says(*With(*storage, NameOfJournalFile(2), second + "x"),
       absl::StrCat("journal.0000000002, offset ", second.size()),
       "bytes behind the mark that ends the file");
  says(*With(*storage, NameOfJournalFile(2), storage->Read(NameOfJournalFile(1)).value()),
       "journal.0000000002, offset 0", "the header is of file 1");
  const auto missing = storage->KillProcess();
  ASSERT_TRUE(missing->Remove(NameOfJournalFile(2)).ok());
  says(*missing, "journal.0000000002 is missing", "recover from a later checkpoint");
  // Who does not need it, does not miss it.
  EXPECT_EQ(ReadJournal(*missing, 7).numbers, Numbers(7, 12));
}

// What was in it would be lost without a word.
TEST_P(ReaderModes, AFileMissingBeforeOneThatWasJustBegunIsSeen) {
  const auto storage = ThreeFiles(GetParam());
  storage->Put(NameOfJournalFile(5), "FSJ");
  for (const absl::Status& status :
       {ReadJournal(*storage).status,
        Journal::Open(storage.get(), TestJournalOptions(GetParam(), 3)).status()}) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("journal.0000000004 is missing"));
  }
}

TEST_P(ReaderModes, RecordsOutOfPlaceAreDamage) {
  const auto storage = ThreeFiles(GetParam());
  const std::string name = NameOfJournalFile(3);
  const std::string content = storage->Read(name).value();
  for (const uint64_t number : {6, 7, 14}) {
    const ReadBack read = ReadJournal(*With(*storage, name, content + RecordOf(OwnedEvent(number).event)));
    EXPECT_TRUE(absl::IsDataLoss(read.status));
    EXPECT_THAT(std::string(read.status.message()),
                HasSubstr(absl::StrCat("event ", number, " where event 13 belongs")));
    EXPECT_EQ(read.numbers, Numbers(1, 12));
  }
}

// A machine lost its power: pages of the last append are there, those before are not.
TEST(JournalReader, ZerosInAnEndThatWasNeverSafeAreCutFromASyncedOne) {
  const auto storage = ThreeFiles(JournalMode::kSynced);
  const std::string name = NameOfJournalFile(3);
  const std::string content = storage->Read(name).value();
  const std::string mark = EncodeJournalMark({.sequence = 3, .synced_bytes = content.size()});
  const std::string safe = content + mark;
  const std::string later = RecordOf(OwnedEvent(14).event);
  const ReadBack read = ReadJournal(*With(*storage, name, safe + std::string(100, '\0') + later));
  EXPECT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.numbers, Numbers(1, 12));
  ASSERT_EQ(read.end.torn.size(), 1u);
  EXPECT_EQ(read.end.torn[0].offset, safe.size());
  // Not where the file says that they were safe.
  const std::string proof = EncodeJournalMark({.sequence = 3, .synced_bytes = safe.size() + 100});
  const ReadBack lost = ReadJournal(*With(*storage, name, safe + std::string(100, '\0') + proof + later));
  EXPECT_TRUE(absl::IsDataLoss(lost.status));
  EXPECT_THAT(std::string(lost.status.message()),
              AllOf(HasSubstr(absl::StrCat("offset ", safe.size())), HasSubstr("it was safe once")));
  // Marks of another file, as bytes in a payload may be, prove nothing.
  const std::string other = EncodeJournalMark({.sequence = 4, .synced_bytes = safe.size() + 100});
  EXPECT_TRUE(ReadJournal(*With(*storage, name, safe + std::string(100, '\0') + other)).status.ok());
}

TEST(JournalReader, ZerosBeforeARecordAreDamageOfABufferedOne) {
  const auto storage = ThreeFiles(JournalMode::kBuffered);
  const std::string name = NameOfJournalFile(3);
  const std::string content = storage->Read(name).value();
  const auto zeros = With(*storage, name, content + std::string(100, '\0'));
  EXPECT_EQ(ReadJournal(*zeros).numbers, Numbers(1, 12));
  EXPECT_TRUE(ReadJournal(*zeros).status.ok());
  const ReadBack lost =
      ReadJournal(*With(*storage, name, content + std::string(100, '\0') + RecordOf(OwnedEvent(14).event)));
  EXPECT_TRUE(absl::IsDataLoss(lost.status));
  EXPECT_THAT(std::string(lost.status.message()), HasSubstr("a record follows"));
}

TEST_P(ReaderModes, AnothersJournalIsRefusedByName) {
  const auto storage = ThreeFiles(GetParam());
  const auto says = [&](const StateIdentity& identity, const std::string& text) {
    for (const absl::Status& status :
         {ReadJournal(*storage, 0, identity).status,
          Journal::Open(storage.get(), {.mode = GetParam(), .identity = identity, .incarnation = 9})
              .status()}) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("journal.0000000003"), HasSubstr(text)));
    }
  };
  StateIdentity identity = kTestIdentity;
  identity.job = 0x77;
  says(identity, "another job (fingerprint): 000000000000000b there, 0000000000000077 here");
  identity = kTestIdentity;
  identity.schema = 1;
  says(identity, "another model schema");
  identity = kTestIdentity;
  identity.plan = 1;
  says(identity, "another shard plan");
  identity = kTestIdentity;
  identity.shard = 0;
  says(identity, "another shard: 1 there, 0 here");
  identity = kTestIdentity;
  identity.shards = 3;
  says(identity, "another number of shards: 2 there, 3 here");
  // Another protocol's program may read it.
  identity = kTestIdentity;
  identity.protocol = 99;
  EXPECT_EQ(ReadJournal(*storage, 0, identity).numbers, Numbers(1, 12));
}

TEST(JournalReader, ANewerFormatIsRefused) {
  for (const auto& [offset, text] : {std::pair{8, "format 2"}, std::pair{11, "events have format 2"}}) {
    FaultyStorage storage;
    std::string header = EncodeJournalHeader({.identity = kTestIdentity, .sequence = 1, .first_number = 1});
    header[offset] = 2;
    const uint64_t checksum = Checksum(AsBytes(header).first(80));
    std::memcpy(header.data() + 80, &checksum, sizeof checksum);
    storage.Put(NameOfJournalFile(1), header);
    const absl::Status status = ReadJournal(storage).status;
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(text), HasSubstr("use the version that wrote it")));
  }
}

TEST(JournalReader, AFolderWithoutAJournalHasNoEvents) {
  FaultyStorage storage;
  EXPECT_TRUE(ReadJournal(storage).status.ok());
  EXPECT_EQ(ReadJournal(storage).end.next_number, 1u);
  EXPECT_EQ(ReadJournal(storage, 50).end.next_number, 50u);
}

TEST(JournalReader, ADiskThatCannotBeReadIsNoEnd) {
  const auto storage = ThreeFiles(JournalMode::kBuffered);
  storage->FailReads(NameOfJournalFile(3), EIO);
  const ReadBack read = ReadJournal(*storage);
  EXPECT_TRUE(absl::IsDataLoss(read.status));
  EXPECT_THAT(std::string(read.status.message()), HasSubstr("cannot read /faulty/journal.0000000003"));
}

TEST(JournalReader, SaysWhereAnEventIs) {
  const auto storage = ThreeFiles(JournalMode::kBuffered);
  const auto reader = JournalReader::Open(*storage, kTestIdentity, 5).value();
  EXPECT_EQ(reader->Next().value()->number, 5u);
  EXPECT_EQ(reader->place(),
            absl::StrCat("/faulty/journal.0000000002, offset ", kJournalHeaderBytes + 100));
}

}  // namespace
}  // namespace foreshard
