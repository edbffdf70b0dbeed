#include "server/journal_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace foreshard {
namespace {

constexpr uint64_t kReadBytes = 4 << 20;
// Where a record says how long its payload is (server/event.h).
constexpr uint64_t kPayloadBytesAt = kEventOverheadBytes - 16;

template <typename T>
T At(ByteSpan bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// Whether a whole record begins here. Cheap where none does.
bool RecordBegins(ByteSpan bytes) {
  if (bytes.size() < kEventOverheadBytes) return false;
  const uint64_t size = uint64_t{At<uint32_t>(bytes, 0)} + 4;
  if (size < kEventOverheadBytes || size > bytes.size()) return false;
  if (At<uint64_t>(bytes, kPayloadBytesAt) != size - kEventOverheadBytes) return false;
  ByteSpan piece;
  uint64_t read = 0;
  // Also one of a format that this program does not read.
  const absl::Status status = ParseRecord(bytes, &piece, &read).status();
  return status.ok() || absl::IsFailedPrecondition(status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<JournalReader>> JournalReader::Open(const Storage& storage,
                                                                   const StateIdentity& identity,
                                                                   uint64_t from) {
  return Make(storage, identity, from);
}

absl::StatusOr<std::unique_ptr<JournalReader>> JournalReader::OpenLastFile(const Storage& storage,
                                                                           const StateIdentity& identity) {
  return Make(storage, identity, std::nullopt);
}

absl::StatusOr<std::unique_ptr<JournalReader>> JournalReader::Make(const Storage& storage,
                                                                   const StateIdentity& identity,
                                                                   std::optional<uint64_t> from) {
  const auto names = ListJournalFiles(storage);
  if (!names.ok()) return names.status();
  std::unique_ptr<JournalReader> reader(new JournalReader(storage, from.value_or(0)));
  JournalEnd& end = reader->end_;
  std::vector<JournalFileHeader>& files = reader->files_;
  std::optional<uint64_t> later;  // place of the file behind the one that is looked at
  // From the newest back, as far as events are wanted.
  for (auto name = names->rbegin(); name != names->rend(); ++name) {
    const std::string path = storage.Describe(name->name);
    const auto bytes = storage.ReadAt(name->name, 0, kJournalHeaderBytes);
    if (!bytes.ok()) return bytes.status();
    const absl::StatusOr<JournalFileHeader> header = ParseJournalHeader(AsBytes(*bytes));
    if (!header.ok()) {
      const auto size = storage.Size(name->name);
      if (!size.ok()) return size.status();
      // A header is safe before anything is put behind it. So this file was just begun.
      if (name == names->rbegin() && absl::IsDataLoss(header.status()) && *size <= kJournalHeaderBytes) {
        end.torn.push_back({.file = name->name,
                            .bytes = *size,
                            .whole_file = true,
                            .why = std::string(header.status().message())});
        later = name->sequence;
        continue;
      }
      return absl::Status(header.status().code(),
                          absl::StrCat(path, ", offset 0: ", header.status().message()));
    }
    if (header->sequence != name->sequence) {
      return absl::DataLossError(absl::StrCat(path, ", offset 0: the header is of file ", header->sequence,
                                              "; give the file its own name again"));
    }
    if (absl::Status same = CheckIdentity(path, identity, header->identity); !same.ok()) return same;
    if (later.has_value() && *later != header->sequence + 1) {
      return absl::DataLossError(
          absl::StrCat(storage.Describe(NameOfJournalFile(header->sequence + 1)), " is missing: ", path,
                       " and ", storage.Describe(NameOfJournalFile(*later)),
                       " are there; bring it back, or recover from a later checkpoint"));
    }
    later = header->sequence;
    end.incarnation = std::max(end.incarnation, header->incarnation);
    files.push_back(*header);
    if (!from.has_value() || header->first_number <= *from) break;
  }
  std::reverse(files.begin(), files.end());
  if (files.empty()) {
    reader->done_ = true;
    end.next_number = std::max<uint64_t>(1, from.value_or(1));
    // A file that stays away is made again under its name.
    if (!names->empty()) end.files_end = names->back().sequence;
    return reader;
  }
  end.files_end = files.back().sequence + 1;
  if (from.value_or(0) > 0 && files.front().first_number > *from) {
    return absl::DataLossError(absl::StrCat(
        storage.Describe(NameOfJournalFile(files.front().sequence)), " begins with event ",
        files.front().first_number, ", and events from ", *from,
        " on are needed: files before it are missing; bring them back, or recover from a later checkpoint"));
  }
  reader->expected_ = files.front().first_number;
  if (absl::Status begun = reader->BeginFile(); !begun.ok()) return begun;
  return reader;
}

std::string JournalReader::place() const {
  return absl::StrCat(storage_.Describe(NameOfJournalFile(files_[file_].sequence)), ", offset ",
                      event_position_);
}

absl::Status JournalReader::Damaged(uint64_t offset, const std::string& why) const {
  return absl::DataLossError(absl::StrCat(storage_.Describe(NameOfJournalFile(files_[file_].sequence)),
                                          ", offset ", offset, ": ", why));
}

absl::Status JournalReader::BeginFile() {
  const auto bytes = storage_.Size(NameOfJournalFile(files_[file_].sequence));
  if (!bytes.ok()) return bytes.status();
  file_bytes_ = *bytes;
  position_ = kJournalHeaderBytes;
  buffer_.clear();
  buffer_at_ = position_;
  const bool finished = std::exchange(closed_, false);
  const uint64_t first = files_[file_].first_number;
  if (first == expected_) return absl::OkStatus();
  // One that could not begin its next file had finished the last; a file that was taken away leaves its
  // number free.
  const bool next = file_ > 0 && files_[file_].sequence == files_[file_ - 1].sequence + 1;
  if (first > expected_ && file_ > 0 && (!finished || next)) beyond_gap_ = first;
  return Damaged(
      0,
      first > expected_
          ? absl::StrCat("events ", expected_, " to ", first - 1,
                         " are in no file: the one before ends too early; recover from a later checkpoint")
          : absl::StrCat("it begins with event ", first, ", and event ", expected_, " is the next"));
}

absl::StatusOr<ByteSpan> JournalReader::Window(uint64_t bytes) {
  bytes = std::min(bytes, file_bytes_ - position_);
  if (position_ + bytes > buffer_at_ + buffer_.size()) {
    auto read = storage_.ReadAt(NameOfJournalFile(files_[file_].sequence), position_,
                                std::min(std::max(bytes, kReadBytes), file_bytes_ - position_));
    if (!read.ok()) return read.status();
    buffer_ = *std::move(read);
    buffer_at_ = position_;
    if (buffer_.size() < bytes) return Damaged(position_, "the file became shorter while it was read");
  }
  return AsBytes(buffer_).subspan(position_ - buffer_at_, bytes);
}

absl::StatusOr<std::optional<Event>> JournalReader::Next() {
  if (!fault_.ok()) return fault_;
  for (;;) {
    auto event = Advance();
    if (!event.ok()) {
      fault_ = event.status();
      return event;
    }
    // Files begin before what is wanted of them.
    if (event->has_value() && (*event)->number < from_) continue;
    return event;
  }
}

absl::StatusOr<std::optional<Event>> JournalReader::Advance() {
  while (!done_) {
    if (position_ == file_bytes_) {
      if (InLastFile()) {
        done_ = true;
        break;
      }
      ++file_;
      if (absl::Status begun = BeginFile(); !begun.ok()) return begun;
      continue;
    }
    if (closed_) return Damaged(position_, "bytes behind the mark that ends the file");
    absl::StatusOr<ByteSpan> window = Window(kJournalMarkBytes);
    if (!window.ok()) return window.status();
    if (const auto mark = ParseJournalMark(*window, files_[file_].sequence); mark.has_value()) {
      if (mark->synced_bytes > position_) {
        return Damaged(position_, absl::StrCat("a mark that ", mark->synced_bytes,
                                               " bytes were safe, which is more than come before it"));
      }
      closed_ = mark->closed;
      position_ += kJournalMarkBytes;
      continue;
    }
    // As long as the record says it is.
    if (window->size() >= 4) window = Window(4 + uint64_t{At<uint32_t>(*window, 0)});
    if (!window.ok()) return window.status();
    uint64_t size = 0;
    absl::StatusOr<Event> event = ParseRecord(*window, &piece_, &size);
    if (absl::IsFailedPrecondition(event.status())) {
      return absl::Status(event.status().code(), absl::StrCat(storage_.Describe(NameOfJournalFile(files_[file_].sequence)), ", offset ",
                                       position_, ": ", event.status().message()));
    }
    if (!event.ok()) {
      if (absl::Status ended = EndAt(std::string(event.status().message())); !ended.ok()) return ended;
      continue;
    }
    if (event->number != expected_) {
      return Damaged(position_,
                     absl::StrCat("event ", event->number, " where event ", expected_, " belongs"));
    }
    event_position_ = position_;
    position_ += size;
    ++expected_;
    return std::optional<Event>(*std::move(event));
  }
  end_.next_number = files_.empty() ? end_.next_number : expected_;
  return std::optional<Event>();
}

absl::Status JournalReader::EndAt(const std::string& why) {
  if (!InLastFile()) {
    return Damaged(
        position_,
        absl::StrCat(why, "; only the last file of a journal may end in the middle of a record"));
  }
  const absl::StatusOr<std::string> evidence = EvidenceOfDamage();
  if (!evidence.ok()) return evidence.status();
  if (!evidence->empty()) return Damaged(position_, absl::StrCat(why, "; ", *evidence));
  // Before what was found torn behind it.
  end_.torn.insert(end_.torn.begin(), {.file = NameOfJournalFile(files_[file_].sequence),
                                       .offset = position_,
                                       .bytes = file_bytes_ - position_,
                                       .why = why});
  done_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::string> JournalReader::EvidenceOfDamage() {
  const absl::StatusOr<ByteSpan> rest = Window(file_bytes_ - position_);
  if (!rest.ok()) return rest.status();
  const JournalFileHeader& header = files_[file_];
  for (uint64_t offset = 0; offset < rest->size(); ++offset) {
    const ByteSpan here = rest->subspan(offset);
    if (const auto mark = ParseJournalMark(here, header.sequence); mark.has_value()) {
      if (mark->synced_bytes > position_) {
        return absl::StrCat("it was safe once: at offset ", position_ + offset, " the file says that ",
                            mark->synced_bytes, " bytes were on the disk");
      }
      if (mark->closed) {
        return absl::StrCat("at offset ", position_ + offset, " the file says that it was finished");
      }
    }
    if (header.mode == JournalMode::kBuffered && RecordBegins(here)) {
      return absl::StrCat("at offset ", position_ + offset,
                          " a record follows, so that this is no torn end of a killed process");
    }
  }
  return std::string();
}

}  // namespace foreshard
