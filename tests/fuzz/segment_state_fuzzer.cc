// A segment's saved state behind its checksum; and what a state does that was loaded.
#include "tests/fuzz/fuzz.h"
#include "tests/golden/samples.h"

namespace foreshard::fuzz {
namespace {

void Run(ByteSpan bytes) {
  Input input(bytes);
  const auto segment = golden::MakeSegment(golden::Kinds()[input.Below(golden::Kinds().size())]);
  if (!segment->Load(AsText(input.rest())).ok()) return;
  const std::string saved = segment->Save();
  FUZZ_CHECK(segment->Load(saved).ok() && segment->Save() == saved);
  for (uint32_t worker = 0; worker < 4; ++worker) {
    Event read = {.kind = EventKind::kRead, .worker = worker, .incarnation = 1};
    std::vector<uint8_t> buffer(segment->max_reply_bytes());
    Reply reply = {.data = buffer.data()};
    if (segment->Admit(&read).ok()) segment->Apply(read, &reply);
    FUZZ_CHECK(reply.bytes <= buffer.size());
  }
  if (segment->RoundComplete()) {
    segment->Replay({.kind = EventKind::kRoundClosed, .argument = segment->open_round()}).IgnoreError();
  }
  segment->Save();
}

void Repair(std::string* input) {
  if (input->size() >= 9) MendChecksum(input, 1, input->size() - 8);
}

Seeds MakeSeeds() {
  Seeds seeds;
  const golden::Files states = golden::SegmentStates();
  for (size_t k = 0; k < golden::Kinds().size(); ++k) {
    const std::string name = golden::Kinds()[k].name();
    seeds[name] = std::string(1, static_cast<char>(k)) + states.at("segments/" + name);
  }
  return seeds;
}

const Registration registration(
    {.name = "segment_state", .run = Run, .repair = Repair, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
