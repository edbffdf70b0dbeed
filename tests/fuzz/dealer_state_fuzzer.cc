// A dealer's saved state behind its checksum, and a few events on what was loaded.
#include "tests/fuzz/fuzz.h"
#include "tests/golden/samples.h"

namespace foreshard::fuzz {
namespace {

void Run(ByteSpan bytes) {
  Input input(bytes);
  DealerOptions options = golden::MakeDealerOptions();
  if (input.Below(2) == 1) {
    options = {.batches_per_epoch = 10, .epochs = 2, .synchronous_workers = 2, .views = true};
  }
  Dealer dealer(options);
  if (!dealer.Load(AsText(input.rest())).ok()) return;
  const std::string saved = dealer.Save();
  FUZZ_CHECK(dealer.Load(saved).ok() && dealer.Save() == saved);
  using Kind = DealerEvent::Kind;
  for (const Kind kind : {Kind::kJoin, Kind::kFetch, Kind::kComplete, Kind::kSkipTo, Kind::kViewKnown,
                          Kind::kAnnounce, Kind::kFetch, Kind::kLost, Kind::kFetch, Kind::kStop}) {
    for (uint32_t worker = 0; worker < 3; ++worker) {
      const Deal deal = dealer.Apply({.kind = kind, .worker = worker, .argument = 1});
      for (const uint64_t ticket : deal.tickets) FUZZ_CHECK(ticket < 360);
    }
  }
  dealer.Save();
}

void Repair(std::string* input) {
  if (input->size() >= 9) MendChecksum(input, 1, input->size() - 8);
}

Seeds MakeSeeds() {
  const golden::Files states = golden::DealerStates();
  return {{"asynchronous", std::string(1, '\0') + states.at("dealers/asynchronous")},
          {"rounds", std::string(1, '\1') + states.at("dealers/rounds")}};
}

const Registration registration(
    {.name = "dealer_state", .run = Run, .repair = Repair, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
