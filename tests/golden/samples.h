// What today's encoders and writers make of fixed content: the golden files are these bytes, and
// fuzzers begin with them.
//
//   for (const auto& [path, bytes] : golden::Samples()) ...     // "segments/dana_zero"
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/dealer.h"
#include "server/segment.h"

namespace foreshard::golden {

using Files = std::map<std::string, std::string>;  // by path

// Rules, and whether in rounds, whose saved states are golden.
struct Kind {
  const char* rule;
  bool synchronous;
  std::string name() const { return std::string(rule) + (synchronous ? "_in_rounds" : ""); }
};
const std::vector<Kind>& Kinds();

// A run of three segments and a dealer, driven by a fixed seed.
constexpr uint64_t kEvents = 130;
// Segment 0 as it was made; Load and Replay take it further.
std::unique_ptr<Segment> MakeSegment(const Kind& kind);
DealerOptions MakeDealerOptions();

Files SegmentStates();   // "segments/RULE"
Files SegmentRecords();  // "events/RULE": the first events of segment 0, one record behind the other
Files DealerStates();    // "dealers/..."
// A server's folder after the run of dana_zero: "journal/journal.0000000001", "checkpoint/...".
Files JournalFiles();
Files CheckpointFiles();
Files Messages();        // "messages/exchange_request"
Files RunDescriptionFile();  // "run.textproto"
Files ConversationFiles();  // "conversation/00-Hello"
// One record of every kind of event: "records/push".
Files EventRecords();

Files Samples();

}  // namespace foreshard::golden
