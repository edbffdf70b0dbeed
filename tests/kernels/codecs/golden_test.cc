// The bytes of each codec, pinned. They were computed once by a separate program
// from the wire format of kernels/codecs/README.md; whoever changes them breaks
// old journals and other devices.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/core/bytes.h"
#include "common/core/random.h"
#include "gtest/gtest.h"
#include "kernels/codecs/codec.h"
#include "kernels/cpu/isa.h"

namespace foreshard {
namespace {

using kernels::Isa;
using kernels::ScopedIsa;

struct Golden {
  const char* name;
  std::vector<float> values;
  // Encoded, in the order of CodecNames().
  const char* none;
  const char* fp16;
  const char* bf16;
  const char* one_bit;
  const char* one_bit_error;  // fp32 words afterwards
  const char* one_bit_mean;
  const char* one_bit_mean_error;
};

const std::vector<Golden>& Goldens() {
  static const auto& goldens = *new std::vector<Golden>{
      {.name = "one element",
       .values = {-1.5f},
       .none = "0000c0bf",
       .fp16 = "00be",
       .bf16 = "c0bf",
       .one_bit = "0000c03f00",
       .one_bit_error = "00000000",
       .one_bit_mean = "0000c03f00",
       .one_bit_mean_error = "00000000"},
      {.name = "zeros of both signs",
       .values = {0.0f, -0.0f, 0.0f},
       .none = "000000000000008000000000",
       .fp16 = "000000800000",
       .bf16 = "000000800000",
       .one_bit = "0000000007",
       .one_bit_error = "000000000000008000000000",
       .one_bit_mean = "0000000007",
       .one_bit_mean_error = "000000000000008000000000"},
      {.name = "mixed, with a partial byte",
       .values = {1.0f, -2.0f, 0.5f, -0.0f, 3.0f, -0.25f, 0.0f, -7.0f, 65519.0f, 1e-3f},
       .none = "0000803f000000c00000003f0000008000004040000080be000000000000e0c000ef7f476f12833a",
       .fp16 = "003c00c000380080004200b4000000c7ff7b1914",
       .bf16 = "803f00c0003f0080404080be0000e0c08047833a",
       .one_bit = "dbdda1465d03",
       .one_bit_error =
           "dbdba1c6dbd9a146dbdca1c6dbdda1c6dbd7a1c65bdda146dbdda1c6dbcfa14612002f47dadda1c6",
       .one_bit_mean = "33cacc455d03",
       .one_bit_mean_error =
           "33c2ccc533bacc4533c6ccc533caccc533b2ccc533c8cc4533caccc53392cc45ba55664731caccc5"},
      {.name = "denormals",
       .values = {0x1p-149f, -0x1p-149f, 1e-40f, -2.5e-39f, 0x1p-126f},
       .none = "0100000001000080c2160100fc381b8000008000",
       .fp16 = "00000080000000800000",
       .bf16 = "0000008001001b808000",
       .one_bit = "91863a0015",
       .one_bit_error = "90863a8090863a00cf6f3980954d1f006f794500",
       .one_bit_mean = "26431f0015",
       .one_bit_mean_error = "25431f8025431f00642c1e802a0a0400dabc6000"},
      {.name = "all equal",
       .values = std::vector<float>(9, 0.1f),
       .none = "cdcccc3dcdcccc3dcdcccc3dcdcccc3dcdcccc3dcdcccc3dcdcccc3dcdcccc3dcdcccc3d",
       .fp16 = "662e662e662e662e662e662e662e662e662e",
       .bf16 = "cd3dcd3dcd3dcd3dcd3dcd3dcd3dcd3dcd3d",
       .one_bit = "cdcccc3dff01",
       .one_bit_error =
           "000000000000000000000000000000000000000000000000000000000000000000000000",
       .one_bit_mean = "cdcccc3dff01",
       .one_bit_mean_error =
           "000000000000000000000000000000000000000000000000000000000000000000000000"},
      {.name = "ties and limits of the 16-bit formats",
       .values = {65504.0f, 65520.0f, -1e6f, 2049.0f, 2051.0f, 0x1p-24f, 0x1p-25f, 0x1.8p-24f,
                  6.1e-5f, 1.00048828125f, 0x1.fffffep127f, 1.00390625f, 1.01171875f},
       .none = "00e07f4700f07f47002474c9001000450030004500008033000000330000c03340da7f380010803f"
               "ffff7f7f0080803f0080813f",
       .fp16 = "ff7bff7bfffb00680268010000000200ff03003cff7b043c0c3c",
       .bf16 = "8047804774c90045004580330033c0338038803f7f7f803f823f",
       .one_bit = "d4008e7efb1f",
       .one_bit_error = "d4008efed4008efed4008e7ed4008efed4008efed4008efed4008efed4008efed4008efe"
                        "d4008efe95ff387fd4008efed4008efe",
       .one_bit_mean = "d8899d7dfb1f",
       .one_bit_mean_error = "d8899dfdd8899dfdd8899d7dd8899dfdd8899dfdd8899dfdd8899dfdd8899dfd"
                             "d8899dfdd8899dfdc44e6c7fd8899dfdd8899dfd"},
  };
  return goldens;
}

// The codecs with parameters: encoded bytes, and the error's fp32 words afterwards.
struct ParametricGolden {
  struct Case {
    const char* codec;
    CodecSettings settings;
    const char* bytes;
    const char* error;
  };
  const char* name;
  std::vector<float> values;
  std::vector<Case> cases;
};

constexpr CodecKey kKey = {.shared = 0x0123456789abcdef, .own = 0xfedcba9876543210};

std::vector<float> Ramp() {
  std::vector<float> values;
  for (int i = 0; i < 13; ++i) values.push_back(static_cast<float>((i - 6) * 0.3));
  return values;
}

const std::vector<ParametricGolden>& ParametricGoldens() {
  static const auto& goldens = *new std::vector<ParametricGolden>{
      {.name = "one element",
       .values = {-1.5f},
       .cases = {
           {"top_k", {.fraction = 0.3f},
            "00000000c0bf",
            "00000000"},
           {"random_k", {.fraction = 0.3f},
            "0000c0bf",
            "00000000"},
           {"quantized", {.bits = 2},
            "0000c03f00",
            "00000000"},
           {"quantized", {.bits = 3},
            "0000c03f00",
            "00000000"},
           {"quantized", {.bits = 8},
            "0000c03f00",
            "00000000"},
       }},
      {.name = "zeros of both signs",
       .values = {0.0f, -0.0f, 0.0f},
       .cases = {
           {"top_k", {.fraction = 0.3f},
            "000000000000",
            "000000000000008000000000"},
           {"random_k", {.fraction = 0.3f},
            "00000000",
            "000000000000008000000000"},
           {"quantized", {.bits = 2},
            "0000000015",
            "000000000000008000000000"},
           {"quantized", {.bits = 3},
            "00000000db00",
            "000000000000008000000000"},
           {"quantized", {.bits = 8},
            "000000007f7f7f",
            "000000000000008000000000"},
       }},
      {.name = "mixed, with a partial byte",
       .values = {1.0f, -2.0f, 0.5f, -0.0f, 3.0f, -0.25f, 0.0f, -7.0f, 65519.0f, 1e-3f},
       .cases = {
           {"top_k", {.fraction = 0.3f},
            "040007000800000040400000e0c000ef7f47",
            "0000803f000000c00000003f0000008000000000000080be0000000000000000000000006f12833a"},
           {"random_k", {.fraction = 0.3f},
            "0000003f000080be00ef7f47",
            "0000803f000000c000000000000000800000404000000000000000000000e0c0000000006f12833a"},
           {"quantized", {.bits = 2},
            "00ef7f47555506",
            "0000803f000000c00000003f0000008000004040000080be000000000000e0c0000000006f12833a"},
           {"quantized", {.bits = 3},
            "00ef7f47dbb66d1e",
            "0000803f000000c00000003f0000008000004040000080be000000000000e0c0000000006f12833a"},
           {"quantized", {.bits = 8},
            "00ef7f477f7f7f7f7f7f7f7ffe7f",
            "0000803f000000c00000003f0000008000004040000080be000000000000e0c0000000006f12833a"},
       }},
      {.name = "denormals",
       .values = {0x1p-149f, -0x1p-149f, 1e-40f, -2.5e-39f, 0x1p-126f},
       .cases = {
           {"top_k", {.fraction = 0.3f},
            "03000400fc381b8000008000",
            "0100000001000080c21601000000000000000000"},
           {"random_k", {.fraction = 0.3f},
            "01000080fc381b80",
            "0100000000000000c21601000000000000008000"},
           {"quantized", {.bits = 2},
            "000000005501",
            "0100000001000080c2160100fc381b8000008000"},
           {"quantized", {.bits = 3},
            "00000000db36",
            "0100000001000080c2160100fc381b8000008000"},
           {"quantized", {.bits = 8},
            "000000007f7f7f7f7f",
            "0100000001000080c2160100fc381b8000008000"},
       }},
      {.name = "all equal",
       .values = std::vector<float>(9, 0.1f),
       .cases = {
           {"top_k", {.fraction = 0.3f},
            "000001000200cdcccc3dcdcccc3dcdcccc3d",
            "000000000000000000000000cdcccc3dcdcccc3dcdcccc3dcdcccc3dcdcccc3dcdcccc3d"},
           {"random_k", {.fraction = 0.3f},
            "cdcccc3dcdcccc3dcdcccc3d",
            "cdcccc3dcdcccc3d00000000cdcccc3dcdcccc3d00000000cdcccc3dcdcccc3d00000000"},
           {"quantized", {.bits = 2},
            "cdcccc3daaaa02",
            "000000000000000000000000000000000000000000000000000000000000000000000000"},
           {"quantized", {.bits = 3},
            "cdcccc3db66ddb06",
            "000000b2000000b2000000b2000000b2000000b2000000b2000000b2000000b2000000b2"},
           {"quantized", {.bits = 8},
            "cdcccc3dfefefefefefefefefe",
            "000000000000000000000000000000000000000000000000000000000000000000000000"},
       }},
      {.name = "ties and limits",
       .values = {2.0f, -3.0f, 0x1.fffffep127f, 3.0f, -2.0f, 3.0f, 0.5f, -0x1.fffffep127f, 1.0f, -3.0f, 2.0f, 0x1p-96f, 0x1p-97f},
       .cases = {
           {"top_k", {.fraction = 0.3f},
            "0100020003000700000040c0ffff7f7f00004040ffff7fff",
            "00000040000000000000000000000000000000c0000040400000003f000000000000803f000040c0000000"
            "400000800f0000000f"},
           {"random_k", {.fraction = 0.3f},
            "000040400000003f000040c00000000f",
            "00000040000040c0ffff7f7f00000000000000c00000404000000000ffff7fff0000803f00000000000000"
            "400000800f00000000"},
           {"quantized", {.bits = 2},
            "ffff7f7f65155501",
            "00000040000040c00000000000004040000000c0000040400000003f000000000000803f000040c0000000"
            "400000800f0000000f"},
           {"quantized", {.bits = 3},
            "ffff7f7f9bb70ddb36",
            "00000040000040c00000000000004040000000c0000040400000003f000000000000803f000040c0000000"
            "400000800f0000000f"},
           {"quantized", {.bits = 8},
            "ffff7f7f7f7ffe7f7f7f7f007f7f7f7f7f",
            "00000040000040c00000807300004040000000c0000040400000003f000080f30000803f000040c0000000"
            "400000800f0000000f"},
       }},
      {.name = "a ramp",
       .values = Ramp(),
       .cases = {
           {"top_k", {.fraction = 0.3f},
            "000001000b000c006666e6bf0000c0bf0000c03f6666e63f",
            "00000000000000009a9999bf666666bf9a9919bf9a9999be000000009a99993e9a99193f6666663f9a9999"
            "3f0000000000000000"},
           {"random_k", {.fraction = 0.3f},
            "666666bf000000006666663f6666e63f",
            "6666e6bf0000c0bf9a9999bf000000009a9919bf9a9999be000000009a99993e9a99193f000000009a9999"
            "3f0000c03f00000000"},
           {"quantized", {.bits = 2},
            "6666e63f54556502",
            "000000000000c0bf9a9999bf666666bf9a9919bf9a9999be000000009a99993e9a99193f6666663f989919"
            "bf0000c03f00000000"},
           {"quantized", {.bits = 3},
            "6666e63f48a46d646b",
            "000000009c9999be000000b49a9999be000080b39a9999be000000009a99993e000080339a99993e000000"
            "349c99993e00000000"},
           {"quantized", {.bits = 8},
            "6666e63f00162b40556a7f94a9bed4e8fe",
            "00000000008341bc80cf1abc8036e8bb80cf9abb80cf1abb0000000080cf1a3b80cf9a3b8036e83b00cf9a"
            "bb0083413c00000000"},
       }},
  };
  return goldens;
}

std::string Hex(const void* data, size_t bytes) {
  return absl::BytesToHexString({static_cast<const char*>(data), bytes});
}

class GoldenTest : public testing::TestWithParam<Isa> {};

INSTANTIATE_TEST_SUITE_P(Isas, GoldenTest,
                         testing::Values(Isa::kBaseline, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& info) { return kernels::IsaName(info.param); });

TEST_P(GoldenTest, Bytes) {
  if (GetParam() > kernels::BestIsa()) GTEST_SKIP() << "this machine has no " << IsaName(GetParam());
  ScopedIsa forced(GetParam());
  for (const Golden& golden : Goldens()) {
    const auto n = static_cast<uint32_t>(golden.values.size());
    const std::vector<const char*> expected = {golden.none, golden.fp16, golden.bf16,
                                               golden.one_bit, golden.one_bit_mean};
    for (size_t i = 0; i < expected.size(); ++i) {
      const Codec& codec = *FindCodec(static_cast<CodecId>(i));
      SCOPED_TRACE(std::string(golden.name) + ", " + std::string(codec.name()));
      std::vector<uint8_t> out(codec.BlockBytes(n));
      std::vector<float> error(n, 0.0f);
      codec.EncodeBlock(golden.values.data(), nullptr, n, {}, out.data());
      EXPECT_EQ(Hex(out.data(), out.size()), expected[i]);
      codec.EncodeBlockReference(golden.values.data(), nullptr, n, {}, out.data());
      EXPECT_EQ(Hex(out.data(), out.size()), expected[i]);

      // -0 + 0 is +0, so zeros in the error hide the signs of zeros in the values.
      if (golden.name == std::string("zeros of both signs")) error.assign(n, -0.0f);
      codec.EncodeBlock(golden.values.data(), error.data(), n, {}, out.data());
      if (codec.id() == CodecId::kOneBit) {
        EXPECT_EQ(Hex(out.data(), out.size()), expected[i]);
        EXPECT_EQ(Hex(error.data(), n * sizeof(float)), golden.one_bit_error);
      }
      if (codec.id() == CodecId::kOneBitMean) {
        EXPECT_EQ(Hex(out.data(), out.size()), expected[i]);
        EXPECT_EQ(Hex(error.data(), n * sizeof(float)), golden.one_bit_mean_error);
      }
    }
  }
}

TEST_P(GoldenTest, BytesWithParameters) {
  if (GetParam() > kernels::BestIsa()) GTEST_SKIP() << "this machine has no " << IsaName(GetParam());
  ScopedIsa forced(GetParam());
  for (const ParametricGolden& golden : ParametricGoldens()) {
    const auto n = static_cast<uint32_t>(golden.values.size());
    for (const ParametricGolden::Case& c : golden.cases) {
      SCOPED_TRACE(std::string(golden.name) + ", " + c.codec + " " + std::to_string(c.settings.bits));
      const CodecSet codecs(c.settings);
      const Codec& codec = *codecs.Find(c.codec);
      for (const bool reference : {false, true}) {
        const auto encode = reference ? &Codec::EncodeBlockReference : &Codec::EncodeBlock;
        std::vector<uint8_t> out(codec.BlockBytes(n));
        (codec.*encode)(golden.values.data(), nullptr, n, kKey, out.data());
        EXPECT_EQ(Hex(out.data(), out.size()), c.bytes);
        // -0 in the error changes no value.
        std::vector<float> error(n, -0.0f);
        (codec.*encode)(golden.values.data(), error.data(), n, kKey, out.data());
        EXPECT_EQ(Hex(out.data(), out.size()), c.bytes);
        EXPECT_EQ(Hex(error.data(), n * sizeof(float)), c.error);
      }
    }
  }
}

// A whole block of 4096 from the counter-based generator, by checksum: three
// pushes with error feedback, so that the checksum covers the error too.
TEST_P(GoldenTest, WholeBlock) {
  if (GetParam() > kernels::BestIsa()) GTEST_SKIP() << "this machine has no " << IsaName(GetParam());
  ScopedIsa forced(GetParam());
  const std::vector<uint64_t> expected = {
      4159170506033471800u, 6971949238495599223u, 8057402724319646475u,
      8205694069022671451u, 12878236260691901201u, 4935500887336818311u,
      870771432822390322u,  1852065141177737944u,
  };
  const CodecSet codecs;
  for (size_t id = 0; id < expected.size(); ++id) {
    const Codec& codec = *codecs.Find(static_cast<CodecId>(id));
    std::vector<float> values(kMaxBlockElements), error(kMaxBlockElements);
    std::vector<uint8_t> bytes;
    for (uint64_t push = 0; push < 3; ++push) {
      for (uint32_t i = 0; i < kMaxBlockElements; ++i) {
        const double uniform = RandomUniform(20, push, i);
        values[i] = static_cast<float>((uniform - 0.5) * (i % 64 == 0 ? 16 : 0.25));
      }
      std::vector<uint8_t> out(codec.BlockBytes(kMaxBlockElements));
      codec.EncodeBlock(values.data(), error.data(), kMaxBlockElements, BlockKey(kKey, push),
                        out.data());
      bytes.insert(bytes.end(), out.begin(), out.end());
    }
    EXPECT_EQ(Checksum(ByteSpan(bytes)), expected[id]) << codec.name();
  }
}

// All 2^16 words against the format's definition, and every tie between two
// neighbours.
TEST_P(GoldenTest, EveryFp16Word) {
  if (GetParam() > kernels::BestIsa()) GTEST_SKIP() << "this machine has no " << IsaName(GetParam());
  ScopedIsa forced(GetParam());
  const Codec& codec = *FindCodec(CodecId::kFp16);
  const auto value_of = [](uint16_t word) {
    const int exponent = word >> 10 & 31;
    const int mantissa = word & 1023;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
    return static_cast<float>(word & 0x8000 ? -magnitude : magnitude);
  };
  for (uint32_t begin = 0; begin < 0x10000; begin += 0x400) {
    if ((begin & 0x7c00) == 0x7c00) continue;  // infinities and NaN
    uint16_t words[1024];
    alignas(64) float decoded[1024];
    float ties[1024];
    for (uint32_t i = 0; i < 1024; ++i) words[i] = static_cast<uint16_t>(begin + i);
    codec.DecodeBlock(reinterpret_cast<const uint8_t*>(words), 1024, {}, decoded);
    for (uint32_t i = 0; i < 1024; ++i) {
      ASSERT_EQ(decoded[i], value_of(words[i])) << words[i];
      ASSERT_EQ(std::signbit(decoded[i]), (words[i] & 0x8000) != 0) << words[i];
      // Half way to the next word outwards.
      const float next = (words[i] & 0x7fff) == 0x7bff ? std::copysign(65536.0f, decoded[i])
                                                       : value_of(words[i] + 1);
      ties[i] = decoded[i] + (next - decoded[i]) / 2;
    }
    uint16_t encoded[1024];
    codec.EncodeBlock(decoded, nullptr, 1024, {}, reinterpret_cast<uint8_t*>(encoded));
    EXPECT_EQ(std::memcmp(encoded, words, sizeof words), 0) << begin;
    codec.EncodeBlock(ties, nullptr, 1024, {}, reinterpret_cast<uint8_t*>(encoded));
    for (uint32_t i = 0; i < 1024; ++i) {
      const bool odd = words[i] & 1;
      const bool largest = (words[i] & 0x7fff) == 0x7bff;  // saturates instead
      ASSERT_EQ(encoded[i], odd && !largest ? words[i] + 1 : words[i]) << words[i];
    }
  }
}

TEST_P(GoldenTest, EveryBf16Word) {
  if (GetParam() > kernels::BestIsa()) GTEST_SKIP() << "this machine has no " << IsaName(GetParam());
  ScopedIsa forced(GetParam());
  const Codec& codec = *FindCodec(CodecId::kBf16);
  for (uint32_t word = 0; word < 0x10000; ++word) {
    if ((word & 0x7f80) == 0x7f80) continue;
    // The word itself, below, at and above half way to the next one outwards.
    float values[4];
    const uint32_t bits[4] = {word << 16, word << 16 | 0x7fff, word << 16 | 0x8000,
                              word << 16 | 0x8001};
    std::memcpy(values, bits, sizeof bits);
    uint16_t out[4];
    codec.EncodeBlock(values, nullptr, 4, {}, reinterpret_cast<uint8_t*>(out));
    const uint32_t up = (word & 0x7fff) == 0x7f7f ? word : word + 1;
    ASSERT_EQ(out[0], word);
    ASSERT_EQ(out[1], word);
    ASSERT_EQ(out[2], word & 1 ? up : word);
    ASSERT_EQ(out[3], up);
  }
}

}  // namespace
}  // namespace foreshard
