// A journal of two files: whatever they hold, events come in order and an end is told.
#include "server/journal_reader.h"
#include "tests/fuzz/fuzz.h"
#include "tests/golden/samples.h"
#include "tests/server/durable_run.h"

namespace foreshard::fuzz {
namespace {

void Run(ByteSpan bytes) {
  const auto files = UnpackFiles(AsText(bytes), 2);
  std::map<std::string, std::string> named;
  for (size_t k = 0; k < files.size(); ++k) {
    if (!files[k].empty()) named[NameOfJournalFile(k + 1)] = files[k];
  }
  const ReadOnlyStorage storage(std::move(named));
  auto reader = JournalReader::Open(storage, kDurableIdentity, 0);
  if (!reader.ok()) return;
  uint64_t last = 0;
  for (;;) {
    const auto event = (*reader)->Next();
    if (!event.ok()) {
      FUZZ_CHECK((*reader)->Next().status() == event.status());
      return;
    }
    if (!event->has_value()) break;
    FUZZ_CHECK(last == 0 || (*event)->number == last + 1);
    last = (*event)->number;
    FUZZ_CHECK(!(*reader)->place().empty());
  }
  FUZZ_CHECK((*reader)->end().next_number > last);
  for (const JournalEnd::Torn& torn : (*reader)->end().torn) {
    FUZZ_CHECK(torn.offset + torn.bytes == storage.Size(torn.file).value());
  }
}

void Repair(std::string* input) {
  std::vector<std::string> files = UnpackFiles(*input, 2);
  for (std::string& file : files) {
    MendChecksum(&file, 0, kJournalHeaderBytes - 8);
    for (size_t at = kJournalHeaderBytes; at < file.size();) {
      if (ReadAt<uint32_t>(file, at) == kJournalMarkBytes - 4) {
        if (at + kJournalMarkBytes > file.size()) break;
        MendChecksum(&file, at + 4, at + 24);
        at += kJournalMarkBytes;
      } else {
        at = MendRecord(&file, at, false);
      }
    }
  }
  *input = PackFiles(files);
}

// Two files of a few events each.
Seeds MakeSeeds() {
  constexpr uint64_t kNumbers[] = {1, 4};
  std::vector<std::string> files;
  const std::string payload(30, 'p');
  const ByteSpan piece = AsBytes(payload);
  for (uint64_t k = 0; k < 2; ++k) {
    std::string file = EncodeJournalHeader({.identity = kDurableIdentity,
                                            .incarnation = 5,
                                            .sequence = k + 1,
                                            .first_number = kNumbers[k]});
    for (uint64_t number = kNumbers[k]; number < kNumbers[k] + 3; ++number) {
      AppendRecord({.kind = EventKind::kPush, .worker = 1, .number = number,
                    .payload = {absl::MakeConstSpan(&piece, 1), piece.size()}},
                   &file);
    }
    if (k == 0) {
      file += EncodeJournalMark({.closed = true, .sequence = 1, .synced_bytes = file.size()});
    }
    files.push_back(file);
  }
  return {{"two_files", PackFiles(files)}, {"one_file", PackFiles({files[0], ""})}};
}

const Registration registration(
    {.name = "journal", .run = Run, .repair = Repair, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
