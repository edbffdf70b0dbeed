#include "common/core/bytes.h"

#include <numeric>

#include "gtest/gtest.h"

#include "common/core/checksum.h"

namespace foreshard {
namespace {

TEST(ByteReader, ReadsBackWhatWasWritten) {
  ByteWriter writer;
  writer.Put<uint32_t>(7);
  writer.PutString("seven");
  const std::vector<float> floats = {1.5f, -0.0f};
  writer.PutFloats(floats);
  ByteReader reader(writer.data());
  EXPECT_EQ(reader.Get<uint32_t>(), 7u);
  EXPECT_EQ(reader.GetString(), "seven");
  std::vector<float> read(2);
  reader.GetFloats(absl::MakeSpan(read));
  EXPECT_EQ(read, floats);
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(reader.left(), 0u);
}

TEST(ByteReader, NeverReadsBeyondTheEnd) {
  ByteWriter writer;
  writer.Put<uint64_t>(1ull << 60);  // a length that lies
  ByteReader reader(writer.data());
  EXPECT_TRUE(reader.GetBytes().empty());
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.Get<uint8_t>(), 0);  // and stays failed
  std::vector<float> two(2);
  ByteWriter three;
  three.PutFloats({{1, 2, 3}});
  ByteReader mismatch(three.data());
  mismatch.GetFloats(absl::MakeSpan(two));
  EXPECT_FALSE(mismatch.ok());
}

TEST(Checksum, IsXxh3OnEveryPathAndForEveryCut) {
  // XXH3_64bits of nothing and of one zero byte, seed 0 (xxHash's own test vectors).
  EXPECT_EQ(Checksum(ByteSpan()), 0x2D06800538D394C2ull);
  const std::vector<uint8_t> zero(1);
  EXPECT_EQ(Checksum(ByteSpan(zero)), 0xC44BDFF4074EECDBull);
  std::vector<uint8_t> bytes(5000);
  for (size_t k = 0; k < bytes.size(); ++k) bytes[k] = static_cast<uint8_t>(k * k >> 3);
  for (const size_t size : {1, 17, 240, 241, 1024, 5000}) {
    const ChecksumPiece whole = {bytes.data(), size};
    const uint64_t expected = internal::ChecksumPortable(&whole, 1);
    EXPECT_EQ(Checksum(ByteSpan(bytes).subspan(0, size)), expected);
    for (size_t cut = 0; cut <= size; cut += 1 + size / 7) {
      const ChecksumPiece pieces[] = {{bytes.data(), cut}, {bytes.data() + cut, size - cut}};
      EXPECT_EQ(internal::ChecksumPortable(pieces, 2), expected);
      EXPECT_EQ(ChecksumPieces(pieces, 2), expected);
    }
  }
}

TEST(PayloadReader, EveryCutGivesTheSameRuns) {
  std::vector<uint8_t> bytes(60);
  std::iota(bytes.begin(), bytes.end(), 0);
  for (size_t first = 0; first <= bytes.size(); ++first) {
    for (size_t second = first; second <= bytes.size(); second += 7) {
      const ByteSpan all(bytes);
      const std::vector<ByteSpan> pieces = {all.subspan(0, first), {}, all.subspan(first, second - first),
                                            all.subspan(second)};
      const Payload payload{pieces, bytes.size()};
      EXPECT_EQ(Checksum(payload), Checksum(all));
      PayloadReader reader(payload);
      std::vector<uint8_t> straddle(32), seen;
      for (const uint64_t run : {1, 0, 13, 32, 14}) {
        const uint8_t* at = reader.Next(run, straddle.data());
        ASSERT_NE(at, nullptr);
        seen.insert(seen.end(), at, at + run);
      }
      EXPECT_EQ(seen, bytes);
      EXPECT_EQ(reader.left(), 0u);
      EXPECT_EQ(reader.Next(1, straddle.data()), nullptr);
    }
  }
}

TEST(ByteReader, ABoolIsZeroOrOne) {
  const std::string text("\0\1\2", 3);
  ByteReader reader{std::string_view(text)};
  EXPECT_FALSE(reader.Get<bool>());
  EXPECT_TRUE(reader.Get<bool>());
  EXPECT_TRUE(reader.ok());
  EXPECT_FALSE(reader.Get<bool>());
  EXPECT_FALSE(reader.ok());
}

}  // namespace
}  // namespace foreshard
