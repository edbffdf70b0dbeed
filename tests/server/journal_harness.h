// Events to record, and what a reader makes of a journal.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/core/random.h"
#include "server/event.h"
#include "server/journal.h"
#include "server/journal_reader.h"

namespace foreshard {

inline const StateIdentity kTestIdentity = {
    .protocol = 3, .shard = 1, .shards = 2, .job = 0x0b, .schema = 0x5c, .plan = 0x91};

// An event that owns its payload, in two pieces.
struct OwnedEvent {
  Event event;
  std::string bytes;
  std::vector<ByteSpan> pieces;

  explicit OwnedEvent(uint64_t number, uint64_t payload_bytes = 20) {
    for (uint64_t k = 0; k < payload_bytes; ++k) bytes += static_cast<char>(RandomBits(9, number, k));
    pieces = {AsBytes(bytes).first(payload_bytes / 3), AsBytes(bytes).subspan(payload_bytes / 3)};
    event = {.kind = EventKind::kPush,
             .codec = 3,
             .segment = static_cast<uint32_t>(number % 3),
             .worker = 2,
             .incarnation = 1000 + number,
             .sequence = number,
             .ticket = 2 * number,
             .number = number,
             .payload = {pieces, payload_bytes}};
  }
  OwnedEvent(const OwnedEvent&) = delete;
};

struct ReadBack {
  std::vector<uint64_t> numbers;
  absl::Status status;
  JournalEnd end;
};

inline std::string RecordOf(const Event& event) {
  std::string record;
  AppendRecord(event, &record);
  return record;
}

// Reads all from `from` on; each event must be as OwnedEvent made it, with some length of
// payload.
inline ReadBack ReadJournal(const Storage& storage, uint64_t from = 0,
                            const StateIdentity& identity = kTestIdentity) {
  ReadBack read;
  auto reader = JournalReader::Open(storage, identity, from);
  read.status = reader.status();
  while (read.status.ok()) {
    const auto event = (*reader)->Next();
    read.status = event.status();
    if (!event.ok()) break;
    if (!event->has_value()) {
      read.end = (*reader)->end();
      break;
    }
    const Event& found = **event;
    if (RecordOf(found) != RecordOf(OwnedEvent(found.number, found.payload.bytes).event)) {
      read.status = absl::UnknownError("an event that was never recorded");
    }
    read.numbers.push_back(found.number);
  }
  return read;
}

inline std::vector<uint64_t> Numbers(uint64_t first, uint64_t last) {
  std::vector<uint64_t> numbers;
  for (uint64_t number = first; number <= last; ++number) numbers.push_back(number);
  return numbers;
}

inline JournalOptions TestJournalOptions(JournalMode mode, uint64_t incarnation = 7) {
  return {.mode = mode, .identity = kTestIdentity, .incarnation = incarnation};
}

inline void RecordAll(Journal& journal, uint64_t first, uint64_t last, uint64_t payload_bytes = 20) {
  for (uint64_t number = first; number <= last; ++number) {
    journal.Record(OwnedEvent(number, payload_bytes).event);
  }
}

}  // namespace foreshard
