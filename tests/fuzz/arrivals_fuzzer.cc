// The order of arrivals as a text file.
#include "server/arrivals.h"
#include "tests/fuzz/fuzz.h"

namespace foreshard::fuzz {
namespace {

void Run(ByteSpan bytes) {
  const MemoryFile file(bytes);
  const auto events = LoadArrivals(file.path());
  if (!events.ok()) return;
  for (size_t k = 0; k < events->size(); ++k) FUZZ_CHECK((*events)[k].number == k + 1);
}

Seeds MakeSeeds() {
  const std::string header =
      "number,segment,kind,worker,incarnation,sequence,ticket,held_version,argument\n";
  return {{"two", header + "1,0,push,2,3,4,5,6,0\n2,dealer,dealer_fetch,1,0,0,0,0,4\n"}};
}

const Registration registration({.name = "arrivals", .run = Run, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
