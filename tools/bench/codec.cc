// Encode with error feedback and decode, of every codec (those with parameters as by default
// and with others), one thread, arrays far beyond the caches. Bytes are counted once each:
// encoding reads values and error and writes error and payload; decoding reads the payload
// and writes values.
#include <string>
#include <vector>

#include "common/core/catalogue.h"
#include "common/core/random.h"
#include "kernels/codecs/codec.h"
#include "tools/bench/bench.h"
#include "tools/bench/measure.h"

namespace foreshard::bench {
namespace {

struct Case {
  std::string name;
  std::string label;
  CodecSettings settings;
};

// Those with parameters as by default, and at their other end.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const CodecTraits& traits : Codecs()) {
    const std::string name(traits.name);
    cases.push_back({name, name, {}});
    if (traits.fraction) cases.push_back({name, name + "_1/4", {.fraction = 0.25f}});
    if (traits.bits) {
      cases.push_back({name, name + "_2", {.bits = 2}});
      cases.push_back({name, name + "_8", {.bits = 8}});
    }
  }
  return cases;
}

}  // namespace

std::vector<BenchResult> BenchCodec(const BenchOptions& options) {
  constexpr uint64_t kElements = 16 << 20;  // 64 MiB of fp32
  std::vector<Block> blocks;
  for (uint64_t at = 0; at < kElements; at += kMaxBlockElements) {
    blocks.push_back({at, kMaxBlockElements, false});
  }
  std::vector<float> values(kElements);
  std::vector<float> error(kElements);
  for (uint64_t i = 0; i < kElements; ++i) {
    values[i] = static_cast<float>(RandomUniform(1, 2, i) - 0.5);
  }

  const double before = StreamTriad(1, options);
  std::vector<BenchResult> results;
  const auto report = [&](std::string name, double bytes, double seconds) {
    results.push_back({std::move(name), bytes / seconds / 1e9, "GB/s"});
  };
  for (const Case& c : Cases()) {
    const CodecSet codecs(c.settings);
    const Codec& codec = *codecs.Find(c.name);
    const std::string prefix = "codec/" + c.label;
    CodecKey key;
    std::vector<uint8_t> payload(EncodedBytes(codec, blocks));
    const auto payload_bytes = static_cast<double>(payload.size());
    const double encode = BestSeconds(options, [&] {
      EncodeSegment(codec, blocks, values.data(), error.data(), key, payload.data());
      ++key.shared;
      ++key.own;
    });
    report(prefix + "/encode", 12.0 * kElements + payload_bytes, encode);

    // Decoded where the caller wants it, as the worker does with a reply; `none`
    // is used in place, so there is nothing to measure.
    if (codec.id() == CodecId::kNone) continue;
    const double decode = BestSeconds(options, [&] {
      const uint8_t* in = payload.data();
      for (const Block& block : blocks) {
        codec.DecodeBlock(in, block.elements, BlockKey(key, block.offset),
                          values.data() + block.offset);
        in += codec.BlockBytes(block.elements);
      }
    });
    report(prefix + "/decode", 4.0 * kElements + payload_bytes, decode);
  }
  HoldAgainstStream(options, before, &results);
  return results;
}

}  // namespace foreshard::bench
