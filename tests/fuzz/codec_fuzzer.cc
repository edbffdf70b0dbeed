// Every codec: bytes in which it finds no fault are decoded to finite values; what it encodes has
// none, and keeps what it does not send in the error.
#include <cmath>

#include "kernels/codecs/codec.h"
#include "tests/fuzz/fuzz.h"

namespace foreshard::fuzz {
namespace {

constexpr uint32_t kMostElements = 300;

void Run(ByteSpan bytes) {
  Input input(bytes);
  CodecSettings settings;
  const auto names = CodecNames();
  const std::string_view name = names[input.Below(names.size())];
  const uint32_t elements = 1 + input.Take<uint16_t>() % kMostElements;
  settings.bits = kMinCodecBits + static_cast<uint32_t>(input.Below(kMaxCodecBits - kMinCodecBits + 1));
  settings.fraction = static_cast<float>(1 + input.Below(64)) / 64;
  const CodecKey key = {.shared = input.Take<uint64_t>(), .own = input.Take<uint64_t>()};
  const CodecSet codecs(settings);
  const Codec& codec = *codecs.Find(name);

  alignas(64) float scratch[kMostElements], values[kMostElements] = {}, error[kMostElements] = {};
  // Copied so that a byte too many is out of bounds.
  std::vector<uint8_t> encoded(codec.BlockBytes(elements));
  const ByteSpan rest = input.rest();
  std::copy_n(rest.begin(), std::min(rest.size(), encoded.size()), encoded.begin());
  const std::string_view fault = codec.Fault(encoded.data(), elements);
  if (fault.empty() || fault == kNotFinite) {
    const float* decoded = codec.DecodeBlock(encoded.data(), elements, key, scratch);
    for (uint32_t k = 0; k < elements && fault.empty(); ++k) FUZZ_CHECK(std::isfinite(decoded[k]));
  }

  std::memcpy(values, rest.data(), std::min(rest.size(), elements * sizeof(float)));
  for (float& value : values) {
    if (!std::isfinite(value) || std::abs(value) > 1e4f) value = 1;  // within fp16
  }
  std::vector<float> sent(elements);
  codec.EncodeBlock(values, error, elements, key, encoded.data());
  FUZZ_CHECK(codec.Fault(encoded.data(), elements).empty());
  const float* decoded = codec.DecodeBlock(encoded.data(), elements, key, scratch);
  for (uint32_t k = 0; k < elements; ++k) FUZZ_CHECK(error[k] == values[k] - decoded[k]);

  std::vector<uint8_t> reference(encoded.size());
  float reference_error[kMostElements] = {};
  codec.EncodeBlockReference(values, reference_error, elements, key, reference.data());
  FUZZ_CHECK(reference == encoded);
}

Seeds MakeSeeds() {
  Seeds seeds;
  const auto names = CodecNames();
  const CodecSet codecs;
  for (size_t codec = 0; codec < names.size(); ++codec) {
    std::vector<float> values(70);
    for (size_t k = 0; k < values.size(); ++k) values[k] = 0.25f * static_cast<float>(k % 9) - 1;
    ByteWriter head;
    head.Put(static_cast<uint8_t>(codec));
    head.Put(static_cast<uint16_t>(values.size() - 1));
    head.Put<uint8_t>(kDefaultCodecBits - kMinCodecBits);
    head.Put<uint8_t>(1);
    head.Put<uint64_t>(11);
    head.Put<uint64_t>(12);
    CodecSettings settings;
    settings.fraction = 2.0f / 64;
    const CodecSet made(settings);
    const Codec& encoder = *made.Find(names[codec]);
    std::string bytes(encoder.BlockBytes(70), '\0');
    encoder.EncodeBlock(values.data(), nullptr, 70, {.shared = 11, .own = 12},
                        reinterpret_cast<uint8_t*>(bytes.data()));
    seeds[std::string(names[codec])] = head.data() + bytes;
  }
  return seeds;
}

const Registration registration({.name = "codec", .run = Run, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
