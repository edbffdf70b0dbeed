#include "common/core/running_checksum.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace foreshard {
namespace {

TEST(RunningChecksum, IsTheChecksumOfThePartsAsOneRun) {
  std::vector<uint8_t> bytes(5000);
  std::iota(bytes.begin(), bytes.end(), uint8_t{3});
  for (const size_t part : {size_t{1}, size_t{7}, size_t{64}, size_t{255}, size_t{1024}, bytes.size()}) {
    RunningChecksum checksum;
    EXPECT_EQ(checksum.value(), Checksum(ByteSpan()));
    for (size_t at = 0; at < bytes.size(); at += part) {
      const ByteSpan piece(bytes.data() + at, std::min(part, bytes.size() - at));
      checksum.Add(piece);
      checksum.Add(ByteSpan());
      EXPECT_EQ(checksum.value(), Checksum(ByteSpan(bytes.data(), at + piece.size())));
    }
  }
}

}  // namespace
}  // namespace foreshard
