// The record of an event: what is read is written as the same bytes.
#include "server/event.h"
#include "tests/fuzz/fuzz.h"

namespace foreshard::fuzz {
namespace {

void Run(ByteSpan bytes) {
  ByteSpan piece;
  uint64_t size = 0;
  const auto event = ParseRecord(bytes, &piece, &size);
  if (!event.ok()) return;
  std::string record;
  AppendRecord(*event, &record);
  FUZZ_CHECK(AsBytes(record) == bytes.first(size));
  std::string members;
  for (const Member& member : ParseMembers(event->payload)) AppendMember(member, &members);
  FUZZ_CHECK(AsBytes(members) == piece.first(piece.size() / kMemberBytes * kMemberBytes));
}

void Repair(std::string* input) { MendRecord(input, 0, true); }

Seeds MakeSeeds() {
  std::string push, view;
  const std::string payload(21, 'p');
  const ByteSpan bytes = AsBytes(payload);
  AppendRecord({.kind = EventKind::kPush, .codec = 3, .segment = 1, .worker = 2, .incarnation = 3,
                .sequence = 4, .ticket = 5, .held_version = 6, .number = 7,
                .payload = {absl::MakeConstSpan(&bytes, 1), bytes.size()}},
               &push);
  std::string members;
  AppendMember({.worker = 1, .incarnation = 2, .first_round = 3}, &members);
  const ByteSpan listed = AsBytes(members);
  AppendRecord({.kind = EventKind::kViewChange, .argument = 1, .number = 8,
                .payload = {absl::MakeConstSpan(&listed, 1), listed.size()}},
               &view);
  return {{"push", push}, {"view", view}};
}

const Registration registration(
    {.name = "event", .run = Run, .repair = Repair, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
