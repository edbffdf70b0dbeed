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
#include <vector>

#include "absl/status/statusor.h"
#include "common/core/bytes.h"
#include "server/format_range.h"

namespace foreshard {

enum class EventKind : uint8_t {
  kInitialise = 1,   // payload: fp32 values; ignored when there are values already
  kJoin = 2,         // worker, incarnation: slot begins with empty state
  kPush = 3,         // worker, sequence, ticket, held_version, payload
  kResend = 4,       // a duplicate: reply in full precision, x_i reset
  kRead = 5,         // argument: a ReadMode. A slot's read resets its x_i
  kDiscard = 6,      // beyond the delay bound: clock and sequence move, nothing is applied
  kSkip = 7,         // the worker's gradient was not finite: as kDiscard
  kExpire = 8,       // worker: silent too long; its state goes, its next push rejoins
  kLeave = 9,        // worker: left politely
  kRoundClosed = 10, // argument: round; the members' pushes are averaged and applied
  kPhaseChange = 11, // argument: a Phase; ticket: the round from which on it is in force
  // Rules with a worker half. worker, incarnation, ticket: a step of the rate; payload:
  // the worker's fp32 v, none where it has none or has brought it
  kLearningRateRepair = 13,
  kSnapshot = 14,    // state is saved at this point; changes nothing
  // Rounds. worker, sequence, argument: round; one that was closed without this worker
  kLate = 15,
  kAbsent = 16,      // worker; argument: it takes no part in rounds before this one
  kViewChange = 17,  // argument: the view's number; payload: its members (AppendMember)

  // The Dealer's events (server/dealer.h); segment is kDealerSegment.
  kDealerJoin = 64,
  kDealerFetch = 65,
  kDealerComplete = 66,
  kDealerLost = 67,
  kDealerStop = 68,
  kDealerSkipTo = 69,
  kDealerViewKnown = 70,
  kDealerAnnounce = 71,
};

// Stands in the segment field for events of the lead's Dealer.
inline constexpr uint32_t kDealerSegment = 0xffffffff;

// Event::argument of kRead.
enum class ReadMode : uint64_t {
  kSlot = 0,             // what the rule sends this worker
  kReaderMaster = 1,     // theta itself; no slot involved, nothing changes
  kReaderLookahead = 2,  // what the rule would send a worker; nothing changes
  kRound = 3,            // what leads from the version the worker holds to the newest
};

// How rounds of a rule with a compressed phase work.
enum class Phase : uint32_t {
  kFull = 0,    // gradients and parameters in full precision
  kFrozen = 1,  // variance frozen, compressed both ways
};

// One worker of a view, which takes part in rounds from `first_round` on.
struct Member {
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  uint64_t first_round = 0;
};

// A view's payload: 20 bytes a member, little-endian: u32 worker, u64 incarnation, u64
// first round.
inline constexpr uint64_t kMemberBytes = 20;
void AppendMember(const Member& member, std::string* out);
// The members of a payload whose length is a multiple of kMemberBytes.
std::vector<Member> ParseMembers(const Payload& payload);

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
  uint64_t argument = 0;    // see EventKind; synchronous kPush and kSkip: the round
  uint64_t number = 0;  // journal number, given under the segment's mutex
  Payload payload;      // not owned
};

inline constexpr uint8_t kEventFormat = 1;
inline constexpr FormatRange kEventFormats = {.oldest = 1, .newest = kEventFormat};
// Bytes of a record without its payload.
inline constexpr uint64_t kEventOverheadBytes = 4 + 4 + 8 + 6 * 8 + 8 + 8;

// True for a read without a worker slot, which changes nothing.
bool ByReader(const Event& event);

// Makes it an event of this kind, which has no payload.
void TurnInto(EventKind kind, Event* event);

// True for events that change a segment's or the dealer's state, and so belong
// into a journal.
bool ChangesState(const Event& event);

// What a record has before its payload and behind it, for who writes the payload from
// where it lies.
struct RecordEnds {
  std::string head;
  uint64_t checksum = 0;
};
RecordEnds EndsOf(const Event& event);

// Appends the event's record.
void AppendRecord(const Event& event, std::string* out);

// Reads the record at the front of `bytes`, which keep owning the payload;
// `piece` receives it. OUT_OF_RANGE: fewer bytes than the record says (a torn
// tail); DATA_LOSS: checksum or kind wrong; FAILED_PRECONDITION: a whole record, in a format that this
// program does not read. `*size` is the record's length when OK.
absl::StatusOr<Event> ParseRecord(ByteSpan bytes, ByteSpan* piece, uint64_t* size);

}  // namespace foreshard
