// Replies taken into the device's vector, against the host's decoding, bit for bit.
#include "kernels/cuda/step_receiver.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/core/catalogue.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cuda/step_memory.h"
#include "tests/kernels/cuda/on_device.h"
#include "tests/kernels/numbers.h"

namespace foreshard::kernels::cuda {
namespace {

constexpr uint64_t kElements = 7000;
constexpr CodecSettings kSettings = {.fraction = 0.125f, .bits = 5};

std::vector<EncodedSegment> Segments() {
  std::vector<EncodedSegment> segments;
  uint64_t begin = 0;
  for (const std::vector<uint32_t>& lengths :
       {std::vector<uint32_t>{4096, 3, 64}, {1, 2731}, {105}}) {
    EncodedSegment& segment = segments.emplace_back();
    segment.begin = begin;
    for (const uint32_t n : lengths) {
      segment.blocks.push_back({.offset = segment.elements, .elements = n, .full = n == 64});
      segment.elements += n;
    }
    begin += segment.elements;
  }
  EXPECT_EQ(begin, kElements);
  return segments;
}

class CudaStepReceiverTest : public OnDevice, public testing::WithParamInterface<CodecTraits> {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    stream_ = Stream::Make().value();
    memory_ = CudaStepMemory::Make(stream_.native(), kElements, kElements).value();
    receiver_ = memory_->MakeReceiver({.segments = segments_, .codec = &codec()}).value();
  }

  const Codec& codec() const { return *codecs_.Find(GetParam().name); }

  void Take(size_t segment, bool plain, const CodecKey& key, const std::vector<uint8_t>& bytes) {
    const auto landing = receiver_->Landing(segment);
    ASSERT_TRUE(landing.ok()) << landing.status();
    std::memcpy(*landing, bytes.data(), bytes.size());
    ASSERT_EQ(receiver_->Take(segment, plain, key), absl::OkStatus());
  }

  // What a step would read that waits for the segment.
  std::vector<float> Read(size_t segment) {
    const EncodedSegment& here = segments_[segment];
    EXPECT_EQ(receiver_->Await(segment), absl::OkStatus());
    std::vector<float> values(here.elements);
    EXPECT_EQ(CopyToHost(values.data(), memory_->vector() + here.begin,
                         values.size() * sizeof(float), stream_.native()),
              absl::OkStatus());
    EXPECT_EQ(stream_.Synchronize(), absl::OkStatus());
    return values;
  }

  const std::vector<EncodedSegment> segments_ = Segments();
  const CodecSet codecs_{kSettings};
  Stream stream_;
  std::unique_ptr<CudaStepMemory> memory_;
  std::unique_ptr<StepReceiver> receiver_;
};

INSTANTIATE_TEST_SUITE_P(All, CudaStepReceiverTest, testing::ValuesIn(Codecs().begin(), Codecs().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(CudaStepReceiverTest, TakesPlainValuesAndThenReplies) {
  std::vector<std::vector<float>> held;
  for (size_t s = 0; s < segments_.size(); ++s) {
    held.push_back(Numbers(20 + s, segments_[s].elements));
    std::vector<uint8_t> bytes(held[s].size() * sizeof(float));
    std::memcpy(bytes.data(), held[s].data(), bytes.size());
    Take(s, true, {}, bytes);
  }
  for (size_t s = 0; s < segments_.size(); ++s) EXPECT_EQ(Bits(Read(s)), Bits(held[s])) << s;
  for (uint64_t version = 1; version <= 3; ++version) {
    const ThreadOrder scoped(version % kOrders);
    // The last segment's reply comes first.
    for (size_t s = segments_.size(); s-- > 0;) {
      const EncodedSegment& segment = segments_[s];
      const CodecKey key = ReplyKey(7, static_cast<uint32_t>(s), 2, version);
      std::vector<uint8_t> bytes(EncodedBytes(codec(), segment.blocks));
      EncodeSegment(codec(), segment.blocks, Numbers(30 * version + s, segment.elements).data(),
                    nullptr, key, bytes.data());
      std::vector<float> decoded(segment.elements);
      DecodeSegment(codec(), segment.blocks, bytes.data(), key, decoded.data());
      for (const Block& block : segment.blocks) {
        float* const to = held[s].data() + block.offset;
        if (BlockCodec(codec(), block).replies_carry_values()) {
          std::copy_n(decoded.data() + block.offset, block.elements, to);
        } else {
          Add(to, decoded.data() + block.offset, block.elements);
        }
      }
      Take(s, codec().id() == CodecId::kNone, key, bytes);
    }
    for (size_t s = 0; s < segments_.size(); ++s) {
      ASSERT_EQ(Bits(Read(s)), Bits(held[s])) << "segment " << s << ", version " << version;
    }
  }
}

TEST_P(CudaStepReceiverTest, ASegmentBeyondTheVectorIsRefused) {
  StepReceiverOptions options = {.segments = segments_, .codec = &codec()};
  options.segments[2].elements += 1;
  EXPECT_EQ(memory_->MakeReceiver(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace foreshard::kernels::cuda
