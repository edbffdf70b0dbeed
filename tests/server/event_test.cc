#include "server/event.h"

#include "gtest/gtest.h"

namespace foreshard {
namespace {

Event FullEvent(absl::Span<const ByteSpan> pieces, uint64_t bytes) {
  return {.kind = EventKind::kPush, .codec = 3, .reply_codec = 1, .segment = 5, .worker = 6,
          .incarnation = 7, .sequence = 8, .ticket = 9, .held_version = 10, .argument = 11,
          .number = 12, .payload = {pieces, bytes}};
}

TEST(EventRecord, ReadsBackWhatWasWritten) {
  const std::vector<uint8_t> first = {1, 2, 3}, second = {4};
  const std::vector<ByteSpan> pieces = {first, second};
  std::string bytes = "before";
  AppendRecord(FullEvent(pieces, 4), &bytes);
  EXPECT_EQ(bytes.size(), 6 + kEventOverheadBytes + 4);
  ByteSpan piece;
  uint64_t size = 0;
  const auto event = ParseRecord(
      ByteSpan(reinterpret_cast<const uint8_t*>(bytes.data()) + 6, bytes.size() - 6), &piece, &size);
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(size, bytes.size() - 6);
  EXPECT_EQ(event->kind, EventKind::kPush);
  EXPECT_EQ(event->codec, 3);
  EXPECT_EQ(event->reply_codec, 1);
  EXPECT_EQ(event->segment, 5u);
  EXPECT_EQ(event->worker, 6u);
  EXPECT_EQ(event->incarnation, 7u);
  EXPECT_EQ(event->sequence, 8u);
  EXPECT_EQ(event->ticket, 9u);
  EXPECT_EQ(event->held_version, 10u);
  EXPECT_EQ(event->argument, 11u);
  EXPECT_EQ(event->number, 12u);
  EXPECT_EQ(std::vector<uint8_t>(piece.begin(), piece.end()), (std::vector<uint8_t>{1, 2, 3, 4}));
}

// The format is a file format: these bytes may never change.
TEST(EventRecord, BytesArePinned) {
  const std::vector<uint8_t> payload = {0xab};
  const std::vector<ByteSpan> pieces = {payload};
  std::string bytes;
  AppendRecord(FullEvent(pieces, 1), &bytes);
  std::string hex;
  for (const char byte : bytes) {
    static constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<uint8_t>(byte) >> 4];
    hex += kDigits[byte & 15];
  }
  EXPECT_EQ(hex.substr(0, hex.size() - 16),
            "4d000000" "01030301" "05000000" "06000000" "0700000000000000" "0800000000000000"
            "0900000000000000" "0a00000000000000" "0b00000000000000" "0c00000000000000"
            "0100000000000000" "ab");
}

TEST(EventRecord, EveryTornTailAndEveryFlippedBitIsSeen) {
  const std::vector<uint8_t> payload(20, 9);
  const std::vector<ByteSpan> pieces = {payload};
  std::string bytes;
  AppendRecord(FullEvent(pieces, 20), &bytes);
  const auto parse = [](std::string_view text) {
    ByteSpan piece;
    uint64_t size = 0;
    return ParseRecord(ByteSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size()), &piece, &size)
        .status();
  };
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_TRUE(absl::IsOutOfRange(parse(bytes.substr(0, cut)))) << cut;
  }
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    EXPECT_FALSE(parse(flipped).ok()) << bit;
  }
}

}  // namespace
}  // namespace foreshard
