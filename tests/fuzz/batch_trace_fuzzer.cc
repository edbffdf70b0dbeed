// A trace of batch times: what is read prints as a text that reads back.
#include "common/core/batch_trace.h"
#include "tests/fuzz/fuzz.h"

namespace foreshard::fuzz {
namespace {

void Run(ByteSpan bytes) {
  const auto trace = ParseTrace(AsText(bytes), "fuzz");
  if (!trace.ok()) return;
  FUZZ_CHECK(ParseTrace(PrintTrace(*trace), "printed").ok());
}

Seeds MakeSeeds() { return {{"trace", PrintTrace({{0.5, 0.25}, {1}})}}; }

const Registration registration({.name = "batch_trace", .run = Run, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
