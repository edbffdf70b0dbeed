// Every format of a golden file with another number: of a newer release, or of one too old. It is
// refused with the numbers and what to do, and never taken for damage, cut or passed over.
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint_format.h"
#include "server/run_description.h"
#include "tests/fuzz/fuzz.h"
#include "tests/golden/samples.h"
#include "tests/golden/stored.h"
#include "tests/server/durable_run.h"

namespace foreshard::golden {
namespace {

using ::testing::HasSubstr;

// Where segments and dealers have their number: behind four bytes that say what it is.
constexpr size_t kStateFormatAt = 4;

template <typename Format>
std::string WithFormat(std::string sealed, size_t at, Format format) {
  fuzz::Overwrite(&sealed, at, format);
  fuzz::MendChecksum(&sealed, 0, sealed.size() - 8);
  return sealed;
}

void ExpectRefused(const absl::Status& status, uint64_t format, uint64_t newest) {
  SCOPED_TRACE(status.ToString());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("has format ", format, ", and this program reads")));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(format > newest ? "a newer release wrote it" : "too old for this one"));
}

TEST(Formats, OfASegmentsState) {
  const Kind& kind = Kinds().front();
  const auto segment = MakeSegment(kind);
  const std::string& stored = Stored().at("segments/" + kind.name());
  const auto format = fuzz::ReadAt<uint16_t>(stored, kStateFormatAt);
  for (const uint16_t other : {uint16_t{0}, static_cast<uint16_t>(format + 1), uint16_t{0xffff}}) {
    ExpectRefused(segment->Load(WithFormat(stored, kStateFormatAt, other)), other, format);
  }
  // What is refused changes nothing.
  EXPECT_EQ(segment->Save(), MakeSegment(kind)->Save());
  EXPECT_TRUE(segment->Load(WithFormat(stored, kStateFormatAt, format)).ok());
}

TEST(Formats, OfADealersState) {
  Dealer dealer(MakeDealerOptions());
  const std::string& stored = Stored().at("dealers/asynchronous");
  const auto format = fuzz::ReadAt<uint16_t>(stored, kStateFormatAt);
  for (const uint16_t other : {uint16_t{0}, static_cast<uint16_t>(format + 1)}) {
    ExpectRefused(dealer.Load(WithFormat(stored, kStateFormatAt, other)), other, format);
  }
  EXPECT_EQ(dealer.Save(), Dealer(MakeDealerOptions()).Save());
}

TEST(Formats, OfAnEventsRecord) {
  std::string record = Stored().at("records/push");
  for (const uint8_t other : {uint8_t{0}, static_cast<uint8_t>(kEventFormat + 1)}) {
    fuzz::Overwrite(&record, 4, other);
    fuzz::MendChecksum(&record, 4, record.size() - 8);
    ByteSpan piece;
    uint64_t size = 0;
    ExpectRefused(ParseRecord(AsBytes(record), &piece, &size).status(), other, kEventFormat);
  }
}

// Opens the server's folder with one file changed.
absl::Status Opened(const std::string& path, const std::string& content) {
  const auto storage = StoredServerFolder();
  storage->Put(path, content);
  const UndisturbedRun run("dana_zero", false, kEvents);
  const std::vector<StorageEntry> before = storage->List("").value();
  const absl::Status status = Recover(*storage, run).status;
  EXPECT_EQ(storage->Read(path).value(), content) << "it is left as it was";
  EXPECT_EQ(storage->List("").value().size(), before.size());
  return status;
}

TEST(Formats, OfAJournalItsEventsAndItsLastRecord) {
  const Files files = Under("journal");
  const std::string& name = files.rbegin()->first;
  const std::string& stored = files.rbegin()->second;
  const auto header = [&](size_t at, uint8_t format) {
    std::string file = stored;
    fuzz::Overwrite(&file, at, format);
    fuzz::MendChecksum(&file, 0, kJournalHeaderBytes - 8);
    return Opened(name, file);
  };
  ExpectRefused(header(8, kJournalFormat + 1), kJournalFormat + 1, kJournalFormat);
  ExpectRefused(header(8, 0), 0, kJournalFormat);
  ExpectRefused(header(11, kEventFormat + 1), kEventFormat + 1, kEventFormat);
  // A record at the end, of a kind that came later: it is no torn end that may be cut.
  std::string file = stored;
  const size_t mark = file.size() - kJournalMarkBytes;
  ASSERT_TRUE(ParseJournalMark(AsBytes(file).subspan(mark), fuzz::ReadAt<uint64_t>(file, 56)).has_value());
  size_t last = kJournalHeaderBytes;
  for (size_t at = last; at < mark; at += 4 + fuzz::ReadAt<uint32_t>(file, at)) last = at;
  file.resize(mark);
  fuzz::Overwrite(&file, last + 4, static_cast<uint8_t>(kEventFormat + 1));
  fuzz::MendChecksum(&file, last + 4, file.size() - 8);
  const absl::Status status = Opened(name, file);
  ExpectRefused(status, kEventFormat + 1, kEventFormat);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(name, ", offset ", last)));
}

TEST(Formats, OfACheckpointsManifestAndStates) {
  const std::string newest = "checkpoint.0000000002/";
  const std::string manifest = Stored().at("checkpoint/" + newest + internal::kManifestName);
  auto parsed = ParseManifest(manifest);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto with_version = [&](uint32_t version) {
    // The text ends with its checksum: 16 digits, a quote, and what closes it.
    std::string text = manifest;
    const std::string from = absl::StrCat("\"format_version\": ", kCheckpointFormat);
    text.replace(text.find(from), from.size(), absl::StrCat("\"format_version\": ", version));
    const size_t digits = text.size() - 4 - 16;
    const uint64_t checksum = Checksum(AsBytes(std::string_view(text).substr(0, digits - 13)));
    return text.replace(digits, 16, absl::StrCat(absl::Hex(checksum, absl::kZeroPad16)));
  };
  ASSERT_TRUE(ParseManifest(with_version(kCheckpointFormat)).ok());
  for (const uint32_t other : {0u, kCheckpointFormat + 1}) {
    ExpectRefused(Opened(newest + internal::kManifestName, with_version(other)), other, kCheckpointFormat);
  }
  // The states alone: the manifest knows their checksum.
  const auto storage = StoredServerFolder();
  std::string states = Stored().at("checkpoint/" + newest + internal::kStateName);
  fuzz::Overwrite(&states, 8, kCheckpointFormat + 1);
  for (CheckpointManifest::File& file : parsed->files) {
    if (file.name == internal::kStateName) file.checksum = Checksum(AsBytes(states));
  }
  storage->Put(newest + internal::kStateName, states);
  storage->Put(newest + internal::kManifestName, EncodeManifest(*parsed).value());
  ExpectRefused(Checkpoint::OpenNewest(*storage, kDurableIdentity).status(), kCheckpointFormat + 1,
                kCheckpointFormat);
}

TEST(Formats, OfTheDescriptionOfARun) {
  const std::string stored = Stored().at("run.textproto");
  FaultyStorage storage;
  storage.Put(kRunFile, stored);
  auto found = ReadRunDescription(storage);
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
  (*found)->set_format_version(kRunFormat + 1);
  // Of a newer release, with something that this one has never heard of.
  storage.Put(kRunFile, absl::StrCat(PrintText(**found), "something_new { a: 1 }\n"));
  ExpectRefused(ReadRunDescription(storage).status(), kRunFormat + 1, kRunFormat);
  (*found)->set_format_version(kRunFormat);
  storage.Put(kRunFile, absl::StrCat(PrintText(**found), "something_new { a: 1 }\n"));
  EXPECT_TRUE(ReadRunDescription(storage).ok()) << "a field more is no new format";
}

}  // namespace
}  // namespace foreshard::golden
