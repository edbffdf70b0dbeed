// The events of a Segment and their record: what the journal is a list of, what
// replay and the simulator feed back in.
//
// Record, little-endian:
//   u32  length of what follows, checksum included
//   u8   format version (1)   u8 kind   u8 codec   u8 reply codec
//   u32  segment              u32 worker
//   u64  incarnation          u64 sequence
//   u64  ticket               u64 held version
//   u64  argument             u64 journal number
//   u64  payload bytes        ... payload ...
//   u64  XXH3-64 of all from the format version up to here
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/core/bytes.h"

namespace foreshard {

enum class EventKind : uint8_t {
  kInitialise = 1,   // payload: fp32 values; ignored when there are values already
  kJoin = 2,         // worker, incarnation: slot begins with empty state
  kPush = 3,         // worker, sequence, ticket, held_version, payload
  kResend = 4,       // a duplicate: reply in full precision, x_i reset
  kRead = 5,         // a slot's read: reply, x_i reset. argument 1: by a reader (no slot)
  kDiscard = 6,      // beyond the delay bound: clock and sequence move, nothing is applied
  kSkip = 7,         // the worker's gradient was not finite: as kDiscard
  kExpire = 8,       // worker: silent too long; its state goes, its next push rejoins
  kLeave = 9,        // worker: left politely
  kRoundClosed = 10, // argument: round; the members' pushes are averaged and applied
  kPhaseChange = 11, // argument: phase from now on
  kFold = 12,        // payload: fp32 (1/n) sum of the workers' errors, added to the reply error
  kLearningRateRepair = 13,  // ticket: of the new rate; payload: fp32 sum of the workers' v
  kSnapshot = 14,    // state is saved at this point; changes nothing
};

struct Event {
  EventKind kind = EventKind::kRead;
  uint8_t codec = 0;        // of the payload, a CodecId
  uint8_t reply_codec = 0;  // wanted; the segment may answer in full precision
  uint32_t segment = 0;
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  uint64_t sequence = 0;
  uint64_t ticket = 0;
  uint64_t held_version = 0;
  uint64_t argument = 0;
  uint64_t number = 0;  // journal number, given under the segment's mutex
  Payload payload;      // not owned
};

inline constexpr uint8_t kEventFormat = 1;
// Bytes of a record without its payload.
inline constexpr uint64_t kEventOverheadBytes = 4 + 4 + 8 + 6 * 8 + 8 + 8;

// Appends the event's record.
void AppendRecord(const Event& event, std::string* out);

// Reads the record at the front of `bytes`, which keep owning the payload;
// `piece` receives it. OUT_OF_RANGE: fewer bytes than the record says (a torn
// tail); DATA_LOSS: checksum, format or kind wrong. `*size` is the record's
// length when OK.
absl::StatusOr<Event> ParseRecord(ByteSpan bytes, ByteSpan* piece, uint64_t* size);

}  // namespace foreshard
