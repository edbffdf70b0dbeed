#include "server/event.h"

#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/core/checksum.h"

namespace foreshard {
namespace {

bool KnownKind(uint8_t kind) {
  return (kind >= static_cast<uint8_t>(EventKind::kInitialise) &&
          kind <= static_cast<uint8_t>(EventKind::kViewChange)) ||
         (kind >= static_cast<uint8_t>(EventKind::kDealerJoin) &&
          kind <= static_cast<uint8_t>(EventKind::kDealerAnnounce));
}

}  // namespace

bool ByReader(const Event& event) {
  return event.kind == EventKind::kRead &&
         (event.argument == static_cast<uint64_t>(ReadMode::kReaderMaster) ||
          event.argument == static_cast<uint64_t>(ReadMode::kReaderLookahead));
}

void TurnInto(EventKind kind, Event* event) {
  event->kind = kind;
  event->payload = {};
  event->codec = 0;
}

bool ChangesState(const Event& event) {
  return event.kind != EventKind::kSnapshot && !ByReader(event);
}

void AppendMember(const Member& member, std::string* out) {
  ByteWriter writer;
  writer.Put(member.worker);
  writer.Put(member.incarnation);
  writer.Put(member.first_round);
  out->append(writer.data());
}

std::vector<Member> ParseMembers(const Payload& payload) {
  std::vector<Member> members;
  uint8_t straddle[kMemberBytes];
  for (PayloadReader reader(payload); reader.left() >= kMemberBytes;) {
    ByteReader fields(ByteSpan(reader.Next(kMemberBytes, straddle), kMemberBytes));
    Member member;
    member.worker = fields.Get<uint32_t>();
    member.incarnation = fields.Get<uint64_t>();
    member.first_round = fields.Get<uint64_t>();
    members.push_back(member);
  }
  return members;
}

RecordEnds EndsOf(const Event& event) {
  ByteWriter writer;
  writer.Put<uint32_t>(static_cast<uint32_t>(kEventOverheadBytes - 4 + event.payload.bytes));
  writer.Put(kEventFormat);
  writer.Put(event.kind);
  writer.Put(event.codec);
  writer.Put(event.reply_codec);
  writer.Put(event.segment);
  writer.Put(event.worker);
  writer.Put(event.incarnation);
  writer.Put(event.sequence);
  writer.Put(event.ticket);
  writer.Put(event.held_version);
  writer.Put(event.argument);
  writer.Put(event.number);
  writer.Put(event.payload.bytes);
  RecordEnds ends = {.head = writer.Take()};
  const ByteSpan summed = AsBytes(ends.head).subspan(4);
  absl::InlinedVector<ChecksumPiece, 16> pieces = {{summed.data(), summed.size()}};
  for (const ByteSpan piece : event.payload.pieces) pieces.push_back({piece.data(), piece.size()});
  ends.checksum = ChecksumPieces(pieces.data(), pieces.size());
  return ends;
}

void AppendRecord(const Event& event, std::string* out) {
  const RecordEnds ends = EndsOf(event);
  out->append(ends.head);
  for (const ByteSpan piece : event.payload.pieces) {
    out->append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  out->append(reinterpret_cast<const char*>(&ends.checksum), sizeof ends.checksum);
}

absl::StatusOr<Event> ParseRecord(ByteSpan bytes, ByteSpan* piece, uint64_t* size) {
  uint32_t length = 0;
  if (bytes.size() < sizeof length) {
    return absl::OutOfRangeError(absl::StrCat("event record: only ", bytes.size(), " bytes are left"));
  }
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length < kEventOverheadBytes - 4) {
    return absl::DataLossError(absl::StrCat("event record: impossible length ", length));
  }
  if (length > bytes.size() - 4) {
    return absl::OutOfRangeError(absl::StrCat("event record: ", length, " bytes were announced, ",
                                              bytes.size() - 4, " are there"));
  }
  const ByteSpan body = bytes.subspan(4, length - 8);
  uint64_t checksum = 0;
  std::memcpy(&checksum, body.data() + body.size(), sizeof checksum);
  if (checksum != Checksum(body)) return absl::DataLossError("event record: checksum differs");
  ByteReader reader(body);
  if (absl::Status known = CheckFormat("event record: it", reader.Get<uint8_t>(), kEventFormats); !known.ok()) {
    return known;
  }
  Event event;
  const auto kind = reader.Get<uint8_t>();
  if (!KnownKind(kind)) return absl::DataLossError(absl::StrCat("event record: unknown kind ", kind));
  event.kind = static_cast<EventKind>(kind);
  event.codec = reader.Get<uint8_t>();
  event.reply_codec = reader.Get<uint8_t>();
  event.segment = reader.Get<uint32_t>();
  event.worker = reader.Get<uint32_t>();
  event.incarnation = reader.Get<uint64_t>();
  event.sequence = reader.Get<uint64_t>();
  event.ticket = reader.Get<uint64_t>();
  event.held_version = reader.Get<uint64_t>();
  event.argument = reader.Get<uint64_t>();
  event.number = reader.Get<uint64_t>();
  *piece = reader.GetBytes();
  if (!reader.ok() || reader.left() != 0) {
    return absl::DataLossError("event record: its payload length contradicts its length");
  }
  event.payload = {absl::MakeConstSpan(piece, 1), piece->size()};
  *size = 4 + uint64_t{length};
  return event;
}

}  // namespace foreshard
