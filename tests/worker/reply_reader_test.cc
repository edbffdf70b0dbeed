#include "worker/reply_reader.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace foreshard {
namespace {

constexpr uint64_t kElements = 700;

class ReplyReaderTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  ReplyReaderTest() : values_(kElements), held_(kElements) {
    plan_.id = 4;
    plan_.begin = 1000;
    plan_.elements = kElements;
    plan_.blocks = {{0, 300}, {300, 1}, {301, 199, false, true}, {500, 200}};
    for (size_t k = 0; k < kElements; ++k) {
      values_[k] = std::sin(static_cast<float>(k));
      held_[k] = std::cos(static_cast<float>(k));
    }
    payload_.resize(EncodedBytes(codec(), plan_.blocks));
    EncodeSegment(codec(), plan_.blocks, values_.data(), nullptr, key_, payload_.data());
  }

  const Codec& codec() const { return *codecs_.Find(GetParam()); }

  // In two pieces that are cut here.
  absl::Status Read(size_t cut, float* to) {
    const ByteSpan bytes(payload_);
    const std::vector<ByteSpan> pieces = {bytes.subspan(0, cut), bytes.subspan(cut)};
    return reader_.Read(plan_, codec(), key_, {.pieces = pieces, .bytes = payload_.size()}, to);
  }

  const CodecSet codecs_;
  const CodecKey key_ = ReplyKey(7, 4, 2, 19);
  SegmentPlan plan_;
  std::vector<float> values_, held_;
  std::vector<uint8_t> payload_;
  ReplyReader reader_;
};

TEST_P(ReplyReaderTest, TakesParametersAndAddsDifferencesHoweverTheyArrived) {
  std::vector<float> expected(kElements);
  DecodeSegment(codec(), plan_.blocks, payload_.data(), key_, expected.data());
  for (const Block& block : plan_.blocks) {
    if (BlockCodec(codec(), block).replies_carry_values()) continue;
    for (uint64_t k = block.offset; k < block.offset + block.elements; ++k) {
      expected[k] = held_[k] + expected[k];
    }
  }
  for (size_t cut = 0; cut <= payload_.size(); cut += 7) {
    std::vector<float> read = held_;
    ASSERT_TRUE(Read(cut, read.data()).ok());
    ASSERT_EQ(std::memcmp(read.data(), expected.data(), kElements * sizeof(float)), 0) << cut;
  }
}

TEST_P(ReplyReaderTest, WhatIsRefusedChangesNothing) {
  std::vector<float> read = held_;
  payload_.pop_back();
  absl::Status status = Read(0, read.data());
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(read, held_);
  payload_.push_back(0);
  if (codec().replies_carry_values()) return;
  // The last block begins with a number that is none; the first blocks are good.
  const uint64_t at = EncodedBytes(codec(), absl::MakeConstSpan(plan_.blocks).subspan(0, 3));
  const float infinite = std::numeric_limits<float>::infinity();
  const uint32_t bits = ~uint32_t{0};
  const bool indices_first = codec().name() == "top_k";
  std::memcpy(payload_.data() + at, indices_first ? static_cast<const void*>(&bits) : &infinite, 4);
  status = Read(0, read.data());
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_NE(status.message().find("the block at element 1500 has "), std::string::npos) << status;
  EXPECT_EQ(read, held_);
}

INSTANTIATE_TEST_SUITE_P(Codecs, ReplyReaderTest, ::testing::ValuesIn(CodecNames()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace foreshard
