#include "server/journal_file.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "server/event.h"

namespace foreshard {
namespace {

constexpr char kMagic[] = "FSJRNL\r\n";
constexpr uint64_t kMagicBytes = 8;
constexpr char kPrefix[] = "journal.";
constexpr uint32_t kMarkLength = kJournalMarkBytes - 4;
constexpr uint32_t kSynced = 1;
constexpr uint32_t kClosed = 3;

}  // namespace

std::string EncodeJournalHeader(const JournalFileHeader& header) {
  ByteWriter writer;
  writer.Put(kJournalFormat);
  writer.Put(header.mode);
  writer.Put(kEventFormat);
  writer.Put(header.identity.protocol);
  writer.Put(header.identity.shard);
  writer.Put(header.identity.shards);
  writer.Put(header.identity.job);
  writer.Put(header.identity.schema);
  writer.Put(header.identity.plan);
  writer.Put(header.incarnation);
  writer.Put(header.sequence);
  writer.Put(header.first_number);
  writer.Put<uint64_t>(0);
  std::string bytes(kMagic, kMagicBytes);
  bytes += writer.data();
  const uint64_t checksum = Checksum(AsBytes(bytes));
  bytes.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  return bytes;
}

absl::StatusOr<JournalFileHeader> ParseJournalHeader(ByteSpan bytes) {
  if (bytes.size() < kJournalHeaderBytes) {
    return absl::DataLossError(
        absl::StrCat("the header is cut: ", bytes.size(), " of ", kJournalHeaderBytes, " bytes"));
  }
  if (std::memcmp(bytes.data(), kMagic, kMagicBytes) != 0) {
    return absl::DataLossError("the header does not begin as a journal's");
  }
  ByteReader reader(bytes.subspan(kMagicBytes));
  const ByteSpan body = bytes.first(kJournalHeaderBytes - sizeof(uint64_t));
  if (ByteReader(bytes.subspan(body.size())).Get<uint64_t>() != Checksum(body)) {
    return absl::DataLossError("the header's checksum differs");
  }
  if (absl::Status known = CheckFormat("the journal", reader.Get<uint16_t>(), kJournalFormats); !known.ok()) {
    return known;
  }
  JournalFileHeader header;
  header.mode = reader.Get<JournalMode>();
  const auto events = reader.Get<uint8_t>();
  header.identity.protocol = reader.Get<uint32_t>();
  header.identity.shard = reader.Get<uint32_t>();
  header.identity.shards = reader.Get<uint32_t>();
  header.identity.job = reader.Get<uint64_t>();
  header.identity.schema = reader.Get<uint64_t>();
  header.identity.plan = reader.Get<uint64_t>();
  header.incarnation = reader.Get<uint64_t>();
  header.sequence = reader.Get<uint64_t>();
  header.first_number = reader.Get<uint64_t>();
  if (absl::Status known = CheckFormat("each of its events", events, kEventFormats); !known.ok()) return known;
  if (header.mode != JournalMode::kBuffered && header.mode != JournalMode::kSynced) {
    return absl::DataLossError(
        absl::StrCat("the header has a mode ", static_cast<int>(header.mode), ", which there is not"));
  }
  if (header.first_number == 0 || header.first_number > ~uint64_t{0} / 2) {
    return absl::DataLossError(
        absl::StrCat("the header says that event ", header.first_number, " is the first, which cannot be"));
  }
  return header;
}

std::string EncodeJournalMark(const JournalMark& mark) {
  ByteWriter body;
  body.Put(mark.closed ? kClosed : kSynced);
  body.Put(mark.sequence);
  body.Put(mark.synced_bytes);
  ByteWriter front;
  front.Put(kMarkLength);
  return front.Take() + body.TakeSealed();
}

std::optional<JournalMark> ParseJournalMark(ByteSpan bytes, uint64_t sequence) {
  if (bytes.size() < kJournalMarkBytes) return std::nullopt;
  ByteReader reader(bytes.first(kJournalMarkBytes));
  if (reader.Get<uint32_t>() != kMarkLength) return std::nullopt;
  const auto kind = reader.Get<uint32_t>();
  JournalMark mark = {.closed = kind == kClosed};
  mark.sequence = reader.Get<uint64_t>();
  mark.synced_bytes = reader.Get<uint64_t>();
  if ((kind != kSynced && kind != kClosed) || mark.sequence != sequence) return std::nullopt;
  if (reader.Get<uint64_t>() != Checksum(bytes.subspan(4, kJournalMarkBytes - 12))) return std::nullopt;
  return mark;
}

std::string NameOfJournalFile(uint64_t sequence) { return absl::StrFormat("%s%010d", kPrefix, sequence); }

absl::StatusOr<std::vector<JournalFileName>> ListJournalFiles(const Storage& storage) {
  const auto entries = storage.List("");
  if (!entries.ok()) return entries.status();
  std::vector<JournalFileName> files;
  for (const StorageEntry& entry : *entries) {
    absl::string_view rest = entry.name;
    JournalFileName file = {.name = entry.name};
    // Only names that this program would give.
    if (!absl::ConsumePrefix(&rest, kPrefix) || !absl::SimpleAtoi(rest, &file.sequence) ||
        NameOfJournalFile(file.sequence) != entry.name) {
      continue;
    }
    if (entry.folder) {
      return absl::FailedPreconditionError(absl::StrCat(storage.Describe(entry.name), " is a folder, and by its name a file of "
                                                        "the journal; move it away, and put the file back from a copy"));
    }
    files.push_back(std::move(file));
  }
  std::sort(files.begin(), files.end(),
            [](const JournalFileName& a, const JournalFileName& b) { return a.sequence < b.sequence; });
  return files;
}

}  // namespace foreshard
