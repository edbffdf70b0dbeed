// Each codec's kernels against the CPU's definition, bit for bit: bytes, error, decoded values.
#include "kernels/cuda/segment_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/core/catalogue.h"
#include "common/core/random.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/frozen_adam_reference.h"
#include "tests/kernels/cuda/on_device.h"

namespace foreshard::kernels::cuda {
namespace {

constexpr CodecKey kKey = {.shared = 0x0123456789abcdef, .own = 0xfedcba9876543210};

// Blocks of these lengths one after another, so that they begin at every alignment; some in full
// precision, every second one decayed.
std::vector<Block> BlocksOf(const std::vector<uint32_t>& lengths) {
  std::vector<Block> blocks;
  uint64_t offset = 0;
  for (const uint32_t n : lengths) {
    blocks.push_back({.offset = offset,
                      .elements = n,
                      .decayed = blocks.size() % 2 == 0,
                      .full = blocks.size() % 11 == 10});
    offset += n;
  }
  return blocks;
}

std::vector<uint32_t> Lengths() {
  std::vector<uint32_t> lengths;
  for (uint32_t n = 1; n <= 34; ++n) lengths.push_back(n);
  for (const uint32_t n : {4096u, 63u, 64u, 65u, 127u, 129u, 255u, 256u, 511u, 777u, 1000u, 1024u,
                           1025u, 2047u, 2731u, 3073u, 4081u, 4095u}) {
    lengths.push_back(n);
  }
  return lengths;
}

enum class Kind { kTame, kWild, kCoarse, kEqual, kZero, kLarge, kLargest };

float Value(Kind kind, uint64_t seed, uint64_t i) {
  const uint64_t bits = RandomBits(seed, 7, i);
  const auto uniform = static_cast<float>(2 * RandomUniform(seed, 8, i) - 1);
  switch (kind) {
    case Kind::kTame: return 0.01f * uniform;
    case Kind::kWild:
      switch (bits % 8) {
        case 0: return 0.0f;
        case 1: return -0.0f;
        case 2:
          return std::bit_cast<float>(static_cast<uint32_t>(bits >> 20 & 0x807fffff));  // denormal
        case 3:
          return std::bit_cast<float>(static_cast<uint32_t>(bits >> 32 & 0xbfffffff));  // below 2
        default: return uniform;
      }
    case Kind::kCoarse:  // many ties
      return 0.25f * static_cast<float>(static_cast<int>(bits % 7) - 3);
    case Kind::kEqual: return -0.3f;
    case Kind::kZero: return i % 3 == 0 ? -0.0f : 0.0f;
    case Kind::kLarge: return uniform * 0.4f * std::numeric_limits<float>::max();
    case Kind::kLargest: return std::copysign(std::numeric_limits<float>::max(), uniform);
  }
  return 0;
}

std::vector<float> Values(Kind kind, uint64_t seed, uint64_t n) {
  std::vector<float> values(n);
  for (uint64_t i = 0; i < n; ++i) values[i] = Value(kind, seed, i);
  return values;
}

struct Case {
  std::string_view name;
  CodecSettings settings;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name << ", fraction " << c.settings.fraction << ", bits " << c.settings.bits;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const CodecTraits& traits : Codecs()) {
    if (traits.fraction) {
      for (const float fraction : {1e-6f, 1.0f / 32, 0.6f})
        cases.push_back({traits.name, {.fraction = fraction}});
    } else if (traits.bits) {
      for (const uint32_t bits : {2u, 3u, 4u, 5u, 7u, 8u})
        cases.push_back({traits.name, {.bits = bits}});
    } else {
      cases.push_back({traits.name, {}});
    }
  }
  return cases;
}

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  std::string name(info.param.name);
  const CodecTraits& traits = *FindCodecTraits(info.param.name);
  if (traits.bits) name += "_" + std::to_string(info.param.settings.bits);
  if (traits.fraction)
    name += "_" + std::to_string(static_cast<int>(1e6f * info.param.settings.fraction));
  return name;
}

class CudaCodecTest : public OnDevice, public testing::WithParamInterface<Case> {
 protected:
  const Codec& codec() { return *codecs_.Find(GetParam().name); }

  // The definition, on the CPU.
  std::vector<uint8_t> Encoded(const std::vector<Block>& blocks, const std::vector<float>& values,
                               std::vector<float>* error) {
    std::vector<uint8_t> bytes(EncodedBytes(codec(), blocks));
    uint8_t* out = bytes.data();
    for (const Block& block : blocks) {
      const Codec& by = BlockCodec(codec(), block);
      by.EncodeBlockReference(values.data() + block.offset,
                              error == nullptr ? nullptr : error->data() + block.offset,
                              block.elements, BlockKey(kKey, block.offset), out);
      out += by.BlockBytes(block.elements);
    }
    return bytes;
  }

  const CodecSet codecs_{GetParam().settings};
};

INSTANTIATE_TEST_SUITE_P(All, CudaCodecTest, testing::ValuesIn(Cases()), CaseName);

TEST_P(CudaCodecTest, EncodesToTheSameBits) {
  const std::vector<Block> blocks = BlocksOf(Lengths());
  const uint64_t n = blocks.back().offset + blocks.back().elements;
  const auto on_device = SegmentCodec::Make(codec(), blocks, nullptr);
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  ASSERT_EQ(on_device->encoded_bytes(), EncodedBytes(codec(), blocks));
  uint64_t turn = 0;
  for (const Kind kind : {Kind::kTame, Kind::kWild, Kind::kCoarse, Kind::kEqual, Kind::kZero,
                          Kind::kLarge, Kind::kLargest}) {
    for (const bool with_error : {true, false}) {
      const std::vector<float> values = Values(kind, 1, n);
      // No sum is infinite.
      const std::vector<float> before = Values(kind == Kind::kLargest ? Kind::kZero : kind, 2, n);
      std::vector<float> error = before;
      const std::vector<uint8_t> bytes = Encoded(blocks, values, with_error ? &error : nullptr);
      // Tame values in all orders, the others in one each.
      for (uint64_t order = 0; order < (kind == Kind::kTame && with_error ? kOrders : 1);
           ++order, ++turn) {
        SCOPED_TRACE("kind " + std::to_string(static_cast<int>(kind)) +
                     (with_error ? " with error" : "") + " turn " + std::to_string(turn));
        const ThreadOrder scoped(turn % kOrders);
        // Aligned, and not, in every combination over the turns.
        const auto device_values = Upload(values, turn % 4);
        const auto device_error = Upload(before, turn % 4 == 3 ? 1 : turn % 4);
        const auto out = Upload(std::vector<uint8_t>(bytes.size(), 0xee), turn % 5);
        ASSERT_EQ(
            on_device->Encode(device_values.data(), with_error ? device_error.data() : nullptr,
                              kKey, out.data(), nullptr, nullptr),
            absl::OkStatus());
        ASSERT_EQ(out.Download(), bytes);
        ASSERT_EQ(Bits(device_error.Download()), Bits(with_error ? error : before));
        ASSERT_EQ(Bits(device_values.Download()), Bits(values));
      }
    }
  }
}

TEST_P(CudaCodecTest, DecodesToTheSameBits) {
  const std::vector<Block> blocks = BlocksOf(Lengths());
  const uint64_t n = blocks.back().offset + blocks.back().elements;
  const auto on_device = SegmentCodec::Make(codec(), blocks, nullptr);
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  uint64_t turn = 0;
  for (const Kind kind : {Kind::kTame, Kind::kWild, Kind::kLarge, Kind::kLargest}) {
    const std::vector<uint8_t> bytes = Encoded(blocks, Values(kind, 1, n), nullptr);
    std::vector<float> decoded(n);
    DecodeSegment(codec(), blocks, bytes.data(), kKey, decoded.data());
    std::vector<float> sum = Values(Kind::kWild, 3, n);
    std::vector<float> reply = sum;
    const std::vector<float> before = sum;
    Add(sum.data(), decoded.data(), n);
    for (const Block& block : blocks) {
      const bool values = BlockCodec(codec(), block).replies_carry_values();
      const float* from = values ? decoded.data() : sum.data();
      std::copy_n(from + block.offset, block.elements, reply.data() + block.offset);
    }
    for (const auto& [decode, expected] : {std::pair{&SegmentCodec::Decode, decoded},
                                           {&SegmentCodec::DecodeAdd, sum},
                                           {&SegmentCodec::DecodeReply, reply}}) {
      const ThreadOrder scoped(turn % kOrders);
      const auto in = Upload(bytes, turn % 5);
      const auto values = Upload(before, turn % 4);
      ASSERT_EQ(((*on_device).*decode)(in.data(), kKey, values.data(), nullptr), absl::OkStatus());
      ASSERT_EQ(Bits(values.Download()), Bits(expected)) << "turn " << turn;
      ++turn;
    }
  }
}

TEST_P(CudaCodecTest, TakesARoundsResultInOnePass) {
  const std::vector<Block> blocks = BlocksOf({3, 4096, 1, 1000, 64, 5, 2049});
  const uint64_t n = blocks.back().offset + blocks.back().elements;
  const auto on_device = SegmentCodec::Make(codec(), blocks, nullptr);
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  const std::vector<uint8_t> bytes = Encoded(blocks, Values(Kind::kTame, 1, n), nullptr);
  std::vector<float> decoded(n);
  DecodeSegment(codec(), blocks, bytes.data(), kKey, decoded.data());
  std::vector<float> denominator(n);
  for (uint64_t i = 0; i < n; ++i)
    denominator[i] = 1e-3f + static_cast<float>(RandomUniform(4, 4, i));
  for (const bool of_gradients : {false, true}) {
    const FrozenAdamStep step = {
        .eta = 0.003f, .beta1 = 0.9f, .weight_decay = 0.01f, .of_gradients = of_gradients};
    const std::vector<float> momentum = Values(Kind::kTame, 5, n),
                             theta = Values(Kind::kWild, 6, n);
    std::vector<float> expected_momentum = momentum, expected_theta = theta;
    for (const Block& block : blocks) {
      FrozenAdamStep of_block = step;
      if (!block.decayed) of_block.weight_decay = 0;
      TakeResultReference(of_block, block.elements, decoded.data() + block.offset,
                          expected_momentum.data() + block.offset,
                          denominator.data() + block.offset, expected_theta.data() + block.offset);
    }
    const ThreadOrder scoped(of_gradients ? kOrders - 1 : 0);
    const uint64_t shift = of_gradients ? 1 : 0;
    const auto in = Upload(bytes, shift), unused = Upload(bytes);
    const auto m = Upload(momentum, shift), d = Upload(denominator, shift),
               t = Upload(theta, shift);
    ASSERT_EQ(
        on_device->DecodeFrozenAdam(in.data(), kKey, step, m.data(), d.data(), t.data(), nullptr),
        absl::OkStatus());
    EXPECT_EQ(Bits(m.Download()), Bits(expected_momentum));
    EXPECT_EQ(Bits(t.Download()), Bits(expected_theta));
  }
}

// What is not finite leaves no trace.
TEST_P(CudaCodecTest, StopsWhereItIsTold) {
  const std::vector<Block> blocks = BlocksOf({100, 1, 4096});
  const uint64_t n = blocks.back().offset + blocks.back().elements;
  const auto on_device = SegmentCodec::Make(codec(), blocks, nullptr);
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  const std::vector<float> values = Values(Kind::kTame, 1, n), error = Values(Kind::kTame, 2, n);
  const std::vector<uint8_t> nothing(on_device->encoded_bytes(), 0xee);
  for (const uint32_t stop : {0u, 1u}) {
    const auto device_stop = Upload(std::vector<uint32_t>{stop});
    const auto device_values = Upload(values), device_error = Upload(error);
    const auto out = Upload(nothing);
    ASSERT_EQ(on_device->Encode(device_values.data(), device_error.data(), kKey, out.data(),
                                device_stop.data(), nullptr),
              absl::OkStatus());
    EXPECT_EQ(out.Download() == nothing, stop == 1);
    EXPECT_EQ(Bits(device_error.Download()) == Bits(error), stop == 1);
  }
}

// What is no number makes no sense of the bytes, but not of other memory. All bits set, as in a
// GPU's own NaN.
TEST_P(CudaCodecTest, WhatIsNoNumberWritesNothingBeyondTheEnd) {
  constexpr size_t kBehind = 65536;
  const float none = std::bit_cast<float>(0x7fffffffu);
  const std::vector<Block> blocks = {{.elements = kMaxBlockElements}};
  const auto on_device = SegmentCodec::Make(codec(), blocks, nullptr);
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  for (const uint64_t every : {1u, 3u, 5000u}) {
    std::vector<float> values = Values(Kind::kTame, 1, kMaxBlockElements);
    for (uint64_t i = 0; i < values.size(); i += every) values[i] = none;
    const auto device_values = Upload(values);
    const auto device_error = Upload(std::vector<float>(values.size()));
    const auto out = Upload(std::vector<uint8_t>(on_device->encoded_bytes() + kBehind, 0xee));
    ASSERT_EQ(on_device->Encode(device_values.data(), device_error.data(), kKey, out.data(),
                                nullptr, nullptr),
              absl::OkStatus());
    const std::vector<uint8_t> bytes = out.Download();
    const auto behind = bytes.begin() + static_cast<int64_t>(on_device->encoded_bytes());
    EXPECT_TRUE(std::all_of(behind, bytes.end(), [](uint8_t byte) { return byte == 0xee; }));
  }
}

TEST_P(CudaCodecTest, AnEmptySegmentIsNoBytes) {
  const auto on_device = SegmentCodec::Make(codec(), {}, nullptr);
  ASSERT_TRUE(on_device.ok()) << on_device.status();
  EXPECT_EQ(on_device->encoded_bytes(), 0u);
  EXPECT_EQ(on_device->Encode(nullptr, nullptr, kKey, nullptr, nullptr, nullptr), absl::OkStatus());
  EXPECT_EQ(on_device->Decode(nullptr, kKey, nullptr, nullptr), absl::OkStatus());
}

TEST_P(CudaCodecTest, BlocksOfImpossibleLengthAreRefused) {
  for (const uint32_t n : {0u, kMaxBlockElements + 1}) {
    const Block block = {.elements = n};
    EXPECT_EQ(SegmentCodec::Make(codec(), {block}, nullptr).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace foreshard::kernels::cuda
