// What holds for every codec: the registry, the segment functions, one set of bytes
// on every instruction set, and the law of error feedback.
#include "kernels/codecs/codec.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
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

enum class Kind { kTame, kWild, kCoarse, kEqual, kZero };

float Value(Kind kind, uint64_t seed, uint64_t i) {
  switch (kind) {
    case Kind::kTame: return Tame(seed, i);
    case Kind::kWild: return Wild(seed, i);
    // Many ties.
    case Kind::kCoarse: return 0.25f * static_cast<float>(static_cast<int>(RandomBits(seed, 10, i) % 7) - 3);
    case Kind::kEqual: return -0.3f;
    case Kind::kZero: break;
  }
  return i % 3 == 0 ? -0.0f : 0.0f;
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

// A codec, with its parameters where it has some.
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
      for (const float fraction : {1e-6f, 1.0f / 32, 0.1f, 0.75f, 1.0f}) {
        cases.push_back({traits.name, {.fraction = fraction}});
      }
    } else if (traits.bits) {
      for (uint32_t bits = kMinCodecBits; bits <= kMaxCodecBits; ++bits) {
        cases.push_back({traits.name, {.bits = bits}});
      }
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
  if (traits.fraction) {
    name += "_" + std::to_string(static_cast<int>(1e6f * info.param.settings.fraction));
  }
  return name;
}

class CodecTest : public testing::TestWithParam<Case> {
 protected:
  const Codec& codec() { return *codecs_.Find(GetParam().name); }

  // Where in the encoding of n elements floating-point words begin, and how long they are.
  std::vector<uint32_t> WordOffsets(uint32_t n, uint32_t* width) {
    *width = codec().id() == CodecId::kFp16 || codec().id() == CodecId::kBf16 ? 2 : 4;
    const bool scaled = codec().id() == CodecId::kOneBit || codec().id() == CodecId::kOneBitMean ||
                        codec().id() == CodecId::kQuantized;
    if (scaled) return {0};
    uint32_t at = 0;
    if (codec().id() == CodecId::kTopK) at = codec().BlockBytes(n) / 3;  // indices come first
    std::vector<uint32_t> offsets;
    for (; at < codec().BlockBytes(n); at += *width) offsets.push_back(at);
    return offsets;
  }

  const CodecSet codecs_{GetParam().settings};
};

INSTANTIATE_TEST_SUITE_P(All, CodecTest, testing::ValuesIn(Cases()), CaseName);

TEST(CodecRegistryTest, IsTheCatalogue) {
  const CodecSet codecs;
  std::vector<std::string_view> names;
  for (const CodecTraits& traits : Codecs()) {
    names.push_back(traits.name);
    const Codec* codec = codecs.Find(traits.name);
    ASSERT_NE(codec, nullptr) << traits.name;
    EXPECT_EQ(codec->name(), traits.name);
    EXPECT_EQ(codec->replies_carry_values(), traits.replies_carry_values) << traits.name;
    EXPECT_EQ(codecs.Find(codec->id()), codec) << traits.name;
    EXPECT_TRUE(IsCodec(codec->id())) << traits.name;
    // Only those without parameters are there without settings.
    EXPECT_EQ(FindCodec(traits.name), traits.fraction || traits.bits ? nullptr : codec);
    EXPECT_EQ(FindCodec(codec->id()), FindCodec(traits.name)) << traits.name;
  }
  EXPECT_EQ(CodecNames(), names);
}

TEST(CodecRegistryTest, UnknownCodecsAreNull) {
  const CodecSet codecs;
  EXPECT_EQ(codecs.Find("two_bit"), nullptr);
  EXPECT_EQ(codecs.Find(""), nullptr);
  EXPECT_EQ(codecs.Find(static_cast<CodecId>(200)), nullptr);
  EXPECT_FALSE(IsCodec(static_cast<CodecId>(8)));
}

TEST(CodecRegistryTest, CodecsLiveAsLongAsTheirSet) {
  CodecSet codecs({.fraction = 0.5f, .bits = 3});
  const Codec* top_k = codecs.Find("top_k");
  const CodecSet moved = std::move(codecs);
  EXPECT_EQ(moved.Find("top_k"), top_k);
  EXPECT_EQ(top_k->BlockBytes(10), 5 * 6u);
}

TEST(CodecRegistryTest, NumbersOnTheWireStay) {
  const CodecSet codecs;
  EXPECT_EQ(static_cast<int>(codecs.Find("top_k")->id()), 5);
  EXPECT_EQ(static_cast<int>(codecs.Find("random_k")->id()), 6);
  EXPECT_EQ(static_cast<int>(codecs.Find("quantized")->id()), 7);
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
  const CodecSet codecs({.fraction = 0.25f, .bits = 3});
  for (const auto& [elements, selected] : std::vector<std::pair<uint32_t, uint32_t>>{
           {0, 0}, {1, 1}, {2, 1}, {5, 1}, {6, 2}, {9, 2}, {10, 3}, {4096, 1024}}) {
    EXPECT_EQ(codecs.Find("top_k")->BlockBytes(elements), 6 * selected) << elements;
    EXPECT_EQ(codecs.Find("random_k")->BlockBytes(elements), 4 * selected) << elements;
  }
  EXPECT_EQ(codecs.Find("quantized")->BlockBytes(1), 5u);
  EXPECT_EQ(codecs.Find("quantized")->BlockBytes(8), 7u);
  EXPECT_EQ(codecs.Find("quantized")->BlockBytes(9), 8u);
  EXPECT_EQ(codecs.Find("quantized")->BlockBytes(4096), 1540u);
}

// What must stay in full precision does, and what would not get shorter.
TEST(BlockCodecTest, FullPrecision) {
  const CodecSet codecs({.fraction = 0.5f, .bits = 8});
  const Codec* none = FindCodec("none");
  const auto of = [&](std::string_view name, uint32_t elements, bool full = false) {
    return &BlockCodec(*codecs.Find(name), {.elements = elements, .full = full});
  };
  for (const std::string_view name : CodecNames()) {
    EXPECT_EQ(of(name, 100), codecs.Find(name)) << name;
    EXPECT_EQ(of(name, 100, true), none) << name;
  }
  EXPECT_EQ(of("one_bit", 1), none);  // 5 bytes instead of 4
  EXPECT_EQ(of("one_bit", 2), codecs.Find("one_bit"));
  EXPECT_EQ(of("top_k", 1), none);
  EXPECT_EQ(of("random_k", 1), none);
  EXPECT_EQ(of("random_k", 3), codecs.Find("random_k"));
  EXPECT_EQ(of("quantized", 1), none);
  EXPECT_EQ(of("fp16", 1), codecs.Find("fp16"));

  // Values and error of a full block are those of `none`; the bytes of a segment never
  // exceed fp32.
  const std::vector<Block> blocks = {{.offset = 0, .elements = 1},
                                     {.offset = 1, .elements = 40, .full = true},
                                     {.offset = 41, .elements = 100},
                                     {.offset = 141, .elements = 2}};
  for (const std::string_view name : CodecNames()) {
    const Codec& codec = *codecs.Find(name);
    std::vector<float> values(143), error(143), decoded(143);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = Tame(1, i);
      error[i] = Tame(2, i);
    }
    const std::vector<float> before = error;
    std::vector<uint8_t> bytes(EncodedBytes(codec, blocks));
    EXPECT_LE(bytes.size(), 4 * values.size()) << name;
    EncodeSegment(codec, blocks, values.data(), error.data(), kKey, bytes.data());
    DecodeSegment(codec, blocks, bytes.data(), kKey, decoded.data());
    for (size_t i = 0; i < 143; ++i) {
      const float c = values[i] + before[i];
      ASSERT_EQ(error[i], c - decoded[i]) << name << " " << i;
      if (blocks[1].offset <= i && i < blocks[2].offset) {
        ASSERT_EQ(decoded[i], c) << name << " " << i;
      }
    }
  }
}

// Of a dead tensor's block there is nothing, but in full precision.
TEST(BlockCodecTest, Dead) {
  const CodecSet codecs;
  const std::vector<Block> blocks = {{.offset = 0, .elements = 40},
                                     {.offset = 40, .elements = 30, .dead = true},
                                     {.offset = 70, .elements = 50},
                                     {.offset = 120, .elements = 7, .dead = true}};
  for (const std::string_view name : CodecNames()) {
    const Codec& codec = *codecs.Find(name);
    const Codec& by = BlockCodec(codec, blocks[1]);
    if (name == "none") {
      EXPECT_EQ(&by, &codec);
      continue;
    }
    EXPECT_EQ(by.id(), CodecId::kNothing);
    EXPECT_EQ(codecs.Find(by.id()), nullptr);  // nobody can ask for it
    EXPECT_FALSE(IsCodec(by.id()));
    EXPECT_EQ(codecs.Find(by.name()), nullptr);
    EXPECT_EQ(by.BlockBytes(30), 0u);
    EXPECT_EQ(by.Fault(nullptr, 30), "");

    std::vector<float> values(127), error(127), decoded(127, 5), reference(127, 5);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = Tame(1, i);
      error[i] = reference[i] = Tame(2, i);
    }
    const uint64_t size = EncodedBytes(codec, blocks);
    EXPECT_EQ(size, codec.BlockBytes(40) + codec.BlockBytes(50)) << name;
    std::vector<uint8_t> bytes(size + 1, 0xa5);
    EncodeSegment(codec, blocks, values.data(), error.data(), kKey, bytes.data());
    EXPECT_EQ(bytes.back(), 0xa5);
    DecodeSegment(codec, blocks, bytes.data(), kKey, decoded.data());
    // The bytes are those of the others, one after another.
    std::vector<uint8_t> alive(size);
    codec.EncodeBlock(values.data(), reference.data(), 40, BlockKey(kKey, 0), alive.data());
    codec.EncodeBlock(values.data() + 70, reference.data() + 70, 50, BlockKey(kKey, 70),
                      alive.data() + codec.BlockBytes(40));
    bytes.pop_back();
    EXPECT_EQ(bytes, alive) << name;
    for (const size_t b : {1, 3}) {
      by.EncodeBlockReference(values.data() + blocks[b].offset, reference.data() + blocks[b].offset,
                              blocks[b].elements, {}, nullptr);
      for (uint32_t k = 0; k < blocks[b].elements; ++k) {
        EXPECT_EQ(std::bit_cast<uint32_t>(decoded[blocks[b].offset + k]), 0u);
        EXPECT_EQ(std::bit_cast<uint32_t>(error[blocks[b].offset + k]), 0u);
      }
    }
    EXPECT_EQ(Bits(error), Bits(reference)) << name;
    EncodeSegment(codec, blocks, values.data(), nullptr, kKey, bytes.data());
  }
}

TEST_P(CodecTest, AnEmptyBlockListIsNoBytes) {
  EXPECT_EQ(EncodedBytes(codec(), {}), 0u);
  EncodeSegment(codec(), {}, nullptr, nullptr, kKey, nullptr);
}

TEST_P(CodecTest, AnEmptyBlockHasNoElements) {
  for (const Isa isa : AllIsas()) {
    ScopedIsa forced(isa);
    std::vector<uint8_t> out(codec().BlockBytes(0) + 1, 0xa5);
    std::vector<uint8_t> reference = out;
    Scratch scratch;
    scratch.values[0] = 7;
    codec().EncodeBlock(scratch.values, nullptr, 0, kKey, out.data());
    codec().EncodeBlock(scratch.values, scratch.values, 0, kKey, out.data());
    codec().EncodeBlockReference(scratch.values, scratch.values, 0, kKey, reference.data());
    EXPECT_EQ(out, reference);
    EXPECT_EQ(out.back(), 0xa5);
    EXPECT_EQ(codec().Fault(out.data(), 0), "");
    codec().DecodeBlock(out.data(), 0, kKey, scratch.values);
    EXPECT_EQ(scratch.values[0], 7);
  }
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
    for (const Kind kind : {Kind::kTame, Kind::kWild, Kind::kCoarse, Kind::kEqual, Kind::kZero}) {
      for (const bool with_error : {false, true}) {
        std::vector<float> values(n + 1), start(n + 1);
        for (uint32_t i = 0; i <= n; ++i) {
          values[i] = Value(kind, n, i);
          start[i] = kind == Kind::kTame || kind == Kind::kWild ? Tame(n + 1, i)
                                                                : Value(kind, n + 1, i);
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
                       " kind " + std::to_string(static_cast<int>(kind)) + (with_error ? " with error" : ""));
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
  float largest = 0;
  for (uint32_t i = 0; i < kElements; ++i) values[i] = Tame(3, i);
  std::vector<uint8_t> out(codec().BlockBytes(kElements));
  constexpr int kPushes = 200;
  for (int push = 0; push < kPushes; ++push) {
    const CodecKey key = BlockKey(kKey, push);
    codec().EncodeBlock(values.data(), error.data(), kElements, key, out.data());
    Scratch scratch;
    const float* decoded = codec().DecodeBlock(out.data(), kElements, key, scratch.values);
    for (uint32_t i = 0; i < kElements; ++i) {
      sent[i] += decoded[i];
      largest = std::max({largest, std::fabs(error[i]), std::fabs(error[i] + decoded[i])});
    }
  }
  // c and the new error are each rounded once a push.
  const double rounding = kPushes * 0x1p-24 * largest;
  for (uint32_t i = 0; i < kElements; ++i) {
    EXPECT_NEAR(sent[i] + error[i], kPushes * static_cast<double>(values[i]), rounding) << i;
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
  for (const Isa isa : AllIsas()) {
    ScopedIsa forced(isa);
    for (const uint32_t n : {1u, 2u, 15u, 16u, 33u, 100u}) {
      std::vector<float> values(n, 1.0f);
      std::vector<uint8_t> room(codec().BlockBytes(n) + 1);
      uint8_t* good = room.data() + 1;  // unaligned on purpose
      codec().EncodeBlock(values.data(), nullptr, n, kKey, good);
      EXPECT_EQ(codec().Fault(good, n), "");
      uint32_t width;
      for (const uint32_t at : WordOffsets(n, &width)) {
        for (const float bad : {std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN()}) {
          std::vector<uint8_t> copy = room;
          uint8_t* in = copy.data() + 1;
          auto word = std::bit_cast<uint32_t>(bad);
          // The upper half of these is non-finite in both 16-bit formats.
          if (width == 2) word >>= 16;
          std::memcpy(in + at, &word, width);
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
