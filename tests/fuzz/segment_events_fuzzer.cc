// Events of whatever content, one record behind the other, as a journal would bring them or a
// worker send them: what is refused changes nothing, what is taken leaves a state that is whole.
#include "tests/fuzz/fuzz.h"
#include "tests/golden/samples.h"

namespace foreshard::fuzz {
namespace {

constexpr int kMostEvents = 40;

void Run(ByteSpan bytes) {
  Input input(bytes);
  const golden::Kind& kind = golden::Kinds()[input.Below(golden::Kinds().size())];
  const auto segment = golden::MakeSegment(kind);
  ByteSpan records = input.rest();
  for (int k = 0; k < kMostEvents; ++k) {
    ByteSpan piece;
    uint64_t size = 0;
    auto event = ParseRecord(records, &piece, &size);
    if (!event.ok()) break;
    records.remove_prefix(size);
    const std::string before = segment->Save();
    if (!segment->CheckPayload(*event).ok() || !segment->Admit(&*event).ok()) {
      FUZZ_CHECK(segment->Save() == before);
      continue;
    }
    std::vector<uint8_t> buffer(segment->max_reply_bytes());
    Reply reply = {.data = buffer.data()};
    segment->Apply(*event, &reply);
    FUZZ_CHECK(reply.bytes <= buffer.size());
    if (segment->RoundComplete() && segment->initialised()) {
      segment->Replay({.kind = EventKind::kRoundClosed, .argument = segment->open_round()}).IgnoreError();
    }
  }
  const std::string saved = segment->Save();
  const auto again = golden::MakeSegment(kind);
  FUZZ_CHECK(again->Load(saved).ok() && again->Save() == saved);
}

void Repair(std::string* input) {
  for (size_t at = 1; at < input->size();) at = MendRecord(input, at, false);
}

Seeds MakeSeeds() {
  Seeds seeds;
  const golden::Files records = golden::SegmentRecords();
  for (size_t k = 0; k < golden::Kinds().size(); ++k) {
    const std::string name = golden::Kinds()[k].name();
    seeds[name] = std::string(1, static_cast<char>(k)) + records.at("events/" + name);
  }
  return seeds;
}

const Registration registration(
    {.name = "segment_events", .run = Run, .repair = Repair, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
