// What holds for every codec: the registry, the segment functions, one set of bytes
// on every instruction set, and the law of error feedback.
#include "kernels/codecs/codec.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "common/core/catalogue.h"
#include "common/core/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/isa.h"

namespace foreshard {
namespace {

using kernels::BestIsa;
using kernels::Isa;
using kernels::IsaName;
using kernels::ScopedIsa;

constexpr CodecKey kKey = {.shared = 0x0123456789abcdef, .own = 0xfedcba9876543210};

std::vector<Isa> AllIsas() {
  std::vector<Isa> isas = {Isa::kBaseline};
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= BestIsa()) isas.push_back(isa);
  }
  return isas;
}

// Numbers of all magnitudes, with zeros of both signs and denormals among them.
float Wild(uint64_t seed, uint64_t i) {
  const uint64_t bits = RandomBits(seed, 7, i);
  switch (bits % 16) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return std::bit_cast<float>(static_cast<uint32_t>(bits >> 20 & 0x807fffff));
    case 3: {  // any finite number
      auto word = static_cast<uint32_t>(bits >> 32);
      if ((word & 0x7f800000) == 0x7f800000) word &= ~0x40000000u;
      return std::bit_cast<float>(word);
    }
    default: return static_cast<float>(2 * RandomUniform(seed, 8, i) - 1);
  }
}

// Typical gradients, no extremes.
float Tame(uint64_t seed, uint64_t i) {
  return static_cast<float>(0.01 * (2 * RandomUniform(seed, 9, i) - 1));
}

std::vector<uint32_t> Bits(const float* values, size_t n) {
  std::vector<uint32_t> bits(n);
  for (size_t i = 0; i < n; ++i) bits[i] = std::bit_cast<uint32_t>(values[i]);
  return bits;
}
std::vector<uint32_t> Bits(const std::vector<float>& values) {
  return Bits(values.data(), values.size());
}

// 64-byte aligned room for a block.
struct alignas(64) Scratch {
  float values[kMaxBlockElements];
};

std::vector<uint32_t> Decode(const Codec& codec, const uint8_t* in, uint32_t n) {
  Scratch scratch;
  return Bits(codec.DecodeBlock(in, n, kKey, scratch.values), n);
}

class CodecTest : public testing::TestWithParam<std::string_view> {
 protected:
  const Codec& codec() { return *codecs_.Find(GetParam()); }

  const CodecSet codecs_;
};

INSTANTIATE_TEST_SUITE_P(All, CodecTest, testing::ValuesIn(CodecNames()),
                         [](const auto& info) { return std::string(info.param); });

TEST(CodecRegistryTest, IsTheCatalogue) {
  std::vector<std::string_view> names;
  for (const CodecTraits& traits : Codecs()) {
    names.push_back(traits.name);
    const Codec* codec = FindCodec(traits.name);
    ASSERT_NE(codec, nullptr) << traits.name;
    EXPECT_EQ(codec->name(), traits.name);
    EXPECT_EQ(codec->replies_carry_values(), traits.replies_carry_values) << traits.name;
    EXPECT_EQ(FindCodec(codec->id()), codec) << traits.name;
  }
  EXPECT_EQ(CodecNames(), names);
}

TEST(CodecRegistryTest, UnknownCodecsAreNull) {
  EXPECT_EQ(FindCodec("two_bit"), nullptr);
  EXPECT_EQ(FindCodec(""), nullptr);
  EXPECT_EQ(FindCodec(static_cast<CodecId>(200)), nullptr);
}

TEST(CodecRegistryTest, NumbersOnTheWireStay) {
  EXPECT_EQ(static_cast<int>(FindCodec("none")->id()), 0);
  EXPECT_EQ(static_cast<int>(FindCodec("fp16")->id()), 1);
  EXPECT_EQ(static_cast<int>(FindCodec("bf16")->id()), 2);
  EXPECT_EQ(static_cast<int>(FindCodec("one_bit")->id()), 3);
  EXPECT_EQ(static_cast<int>(FindCodec("one_bit_mean")->id()), 4);
}

TEST(CodecSizeTest, BytesOfABlock) {
  const Codec* one_bit = FindCodec("one_bit");
  EXPECT_EQ(one_bit->BlockBytes(1), 5u);
  EXPECT_EQ(one_bit->BlockBytes(8), 5u);
  EXPECT_EQ(one_bit->BlockBytes(9), 6u);
  EXPECT_EQ(one_bit->BlockBytes(4096), 516u);
  EXPECT_EQ(FindCodec("none")->BlockBytes(3), 12u);
  EXPECT_EQ(FindCodec("fp16")->BlockBytes(3), 6u);
  EXPECT_EQ(FindCodec("bf16")->BlockBytes(3), 6u);
}

TEST_P(CodecTest, AnEmptyBlockListIsNoBytes) {
  EXPECT_EQ(EncodedBytes(codec(), {}), 0u);
  EncodeSegment(codec(), {}, nullptr, nullptr, kKey, nullptr);
}

TEST_P(CodecTest, ASegmentIsItsBlocksOneAfterAnother) {
  const std::vector<Block> blocks = {{0, 4096, true}, {4096, 7, false}, {4103, 1, false},
                                     {4104, 100, true}};
  std::vector<float> values(4204), error(4204), whole_error, piece_error;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = Tame(1, i);
    error[i] = Tame(2, i);
  }
  whole_error = piece_error = error;
  std::vector<uint8_t> whole(EncodedBytes(codec(), blocks)), pieces;
  EncodeSegment(codec(), blocks, values.data(), whole_error.data(), kKey, whole.data());
  for (const Block& block : blocks) {
    const Codec& by = BlockCodec(codec(), block);
    std::vector<uint8_t> piece(by.BlockBytes(block.elements));
    by.EncodeBlock(values.data() + block.offset, piece_error.data() + block.offset,
                        block.elements, BlockKey(kKey, block.offset), piece.data());
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(whole, pieces);
  EXPECT_EQ(Bits(whole_error), Bits(piece_error));
}

// Every instruction set against the reference: bytes, error, decoded values; on
// unaligned addresses, and nothing written beyond the end.
TEST_P(CodecTest, EveryPathGivesTheSameBits) {
  std::vector<uint32_t> sizes = {127, 128, 129, 1000, 4081, 4095, 4096};
  for (uint32_t n = 1; n <= 65; ++n) sizes.push_back(n);
  for (const uint32_t n : sizes) {
    for (const bool wild : {false, true}) {
      for (const bool with_error : {false, true}) {
        std::vector<float> values(n + 1), start(n + 1);
        for (uint32_t i = 0; i <= n; ++i) {
          values[i] = wild ? Wild(n, i) : Tame(n, i);
          start[i] = Tame(n + 1, i);
        }
        const uint32_t bytes = codec().BlockBytes(n);
        std::vector<uint8_t> expected(bytes);
        std::vector<float> expected_error = start;
        codec().EncodeBlockReference(values.data(), with_error ? expected_error.data() : nullptr,
                                     n, kKey, expected.data());
        std::vector<uint32_t> expected_decoded;
        {
          ScopedIsa baseline(Isa::kBaseline);
          expected_decoded = Decode(codec(), expected.data(), n);
        }
        for (const Isa isa : AllIsas()) {
          SCOPED_TRACE(std::string(IsaName(isa)) + " n=" + std::to_string(n) +
                       (wild ? " wild" : " tame") + (with_error ? " with error" : ""));
          ScopedIsa forced(isa);
          std::vector<uint8_t> out(bytes + 9, 0xa5);
          std::vector<float> error = start;
          codec().EncodeBlock(values.data(), with_error ? error.data() : nullptr, n,
                              kKey, out.data() + 1);
          ASSERT_EQ(std::vector<uint8_t>(out.begin() + 1, out.begin() + 1 + bytes), expected);
          ASSERT_EQ(Bits(error), Bits(expected_error));
          for (uint32_t i = bytes + 1; i < out.size(); ++i) ASSERT_EQ(out[i], 0xa5);
          ASSERT_EQ(out[0], 0xa5);
          ASSERT_EQ(Decode(codec(), out.data() + 1, n), expected_decoded);

          Scratch scratch;
          std::memset(&scratch, 0x5a, sizeof scratch);
          codec().DecodeBlock(out.data() + 1, n, kKey, scratch.values);
          if (n < kMaxBlockElements) {
            ASSERT_EQ(std::bit_cast<uint32_t>(scratch.values[n]), 0x5a5a5a5au);
          }
        }
      }
    }
  }
}

// The law of error feedback: the new error is c - decoded, rounded once to fp32.
TEST_P(CodecTest, ErrorIsWhatWasLost) {
  for (const bool wild : {false, true}) {
    for (const uint32_t n : {1u, 5u, 100u, 4096u}) {
      std::vector<float> values(n), error(n), c(n);
      for (uint32_t i = 0; i < n; ++i) {
        values[i] = wild ? Wild(50 + n, i) : Tame(50 + n, i);
        error[i] = Tame(51 + n, i);
        c[i] = values[i] + error[i];
      }
      std::vector<uint8_t> out(codec().BlockBytes(n));
      codec().EncodeBlock(values.data(), error.data(), n, kKey, out.data());
      Scratch scratch;
      const float* decoded = codec().DecodeBlock(out.data(), n, kKey, scratch.values);
      for (uint32_t i = 0; i < n; ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(error[i]), std::bit_cast<uint32_t>(c[i] - decoded[i]))
            << "element " << i << " of " << n << ", c = " << c[i];
      }
    }
  }
}

// Over many pushes of a constant gradient the decoded values add up to what was
// put in, up to the error that is still held: nothing is lost for good.
TEST_P(CodecTest, WhatIsSentAddsUp) {
  constexpr uint32_t kElements = 257;
  std::vector<float> values(kElements), error(kElements);
  std::vector<double> sent(kElements);
  for (uint32_t i = 0; i < kElements; ++i) values[i] = Tame(3, i);
  std::vector<uint8_t> out(codec().BlockBytes(kElements));
  constexpr int kPushes = 200;
  for (int push = 0; push < kPushes; ++push) {
    codec().EncodeBlock(values.data(), error.data(), kElements, kKey, out.data());
    Scratch scratch;
    const float* decoded = codec().DecodeBlock(out.data(), kElements, kKey, scratch.values);
    for (uint32_t i = 0; i < kElements; ++i) sent[i] += decoded[i];
  }
  for (uint32_t i = 0; i < kElements; ++i) {
    EXPECT_NEAR(sent[i] + error[i], kPushes * static_cast<double>(values[i]), 2e-6) << i;
  }
}

TEST_P(CodecTest, DecodedValuesStayFinite) {
  std::vector<float> values(64);
  for (uint32_t i = 0; i < values.size(); ++i) {
    values[i] = i % 2 ? -std::numeric_limits<float>::max() : std::numeric_limits<float>::max();
  }
  for (const Isa isa : AllIsas()) {
    ScopedIsa forced(isa);
    std::vector<float> error(values.size());
    std::vector<uint8_t> out(codec().BlockBytes(64));
    codec().EncodeBlock(values.data(), error.data(), 64, kKey, out.data());
    EXPECT_EQ(codec().Fault(out.data(), 64), "") << IsaName(isa);
    for (const float e : error) EXPECT_TRUE(std::isfinite(e)) << IsaName(isa);
  }
}

// Puts each non-finite word into each place it can have.
TEST_P(CodecTest, NonFiniteBytesAreFound) {
  const uint32_t width = codec().BlockBytes(2) - codec().BlockBytes(1);  // 0: only the scale counts
  for (const Isa isa : AllIsas()) {
    ScopedIsa forced(isa);
    for (const uint32_t n : {1u, 2u, 15u, 16u, 33u, 100u}) {
      std::vector<float> values(n, 1.0f);
      std::vector<uint8_t> room(codec().BlockBytes(n) + 1);
      uint8_t* good = room.data() + 1;  // unaligned on purpose
      codec().EncodeBlock(values.data(), nullptr, n, kKey, good);
      EXPECT_EQ(codec().Fault(good, n), "");
      for (uint32_t at = 0; at < (width == 0 ? 1 : n); ++at) {
        for (const float bad : {std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN()}) {
          std::vector<uint8_t> copy = room;
          uint8_t* in = copy.data() + 1;
          auto word = std::bit_cast<uint32_t>(bad);
          // The upper half of these is non-finite in both 16-bit formats.
          if (width == 2) word >>= 16;
          std::memcpy(in + at * width, &word, width == 2 ? 2 : 4);
          EXPECT_THAT(std::string(codec().Fault(in, n)), testing::HasSubstr("not finite"))
              << IsaName(isa) << " n=" << n << " at=" << at << " bad=" << bad;
        }
      }
    }
  }
}

TEST_P(CodecTest, AlignedPlainBytesAreUsedInPlace) {
  alignas(64) uint8_t in[64] = {};
  Scratch scratch;
  const float* decoded = codec().DecodeBlock(in, 4, kKey, scratch.values);
  if (codec().id() == CodecId::kNone) {
    EXPECT_EQ(static_cast<const void*>(decoded), in);
  } else {
    EXPECT_EQ(decoded, scratch.values);
  }
}

}  // namespace
}  // namespace foreshard
