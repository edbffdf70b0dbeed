// Feeds records of events into a segment, as recovery would.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/core/bytes.h"
#include "gtest/gtest.h"
#include "server/segment.h"

namespace foreshard {

inline void ReplayRecords(std::string_view text, Segment* segment) {
  for (ByteSpan records = AsBytes(text); !records.empty();) {
    ByteSpan piece;
    uint64_t size = 0;
    const auto event = ParseRecord(records, &piece, &size);
    ASSERT_TRUE(event.ok()) << event.status();
    const absl::Status replayed = segment->Replay(*event);
    ASSERT_TRUE(replayed.ok()) << replayed;
    records.remove_prefix(size);
  }
}

}  // namespace foreshard
