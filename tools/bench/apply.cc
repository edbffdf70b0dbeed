// Decode and apply, block by block as a segment does it, one thread, state far
// beyond the caches. Bytes are counted once each: the payload read; theta and the
// rule's state read and written; the reply written.
#include <memory>
#include <string>
#include <vector>

#include "common/core/random.h"
#include "kernels/codecs/codec.h"
#include "server/update_rules/update_rule.h"
#include "tools/bench/bench.h"
#include "tools/bench/measure.h"

namespace foreshard::bench {
namespace {

constexpr uint64_t kSegmentElements = 1 << 20;
constexpr uint64_t kSegments = 16;  // 64 MiB of fp32 in all
constexpr uint64_t kElements = kSegments * kSegmentElements;
constexpr uint32_t kWorkers = 4;

struct Case {
  const char* rule;
  const char* suffix;   // of the result's name
  double floats_moved;  // an element, beyond the payload
  bool reply;
};

constexpr Case kCases[] = {
    {"asgd", "", 3, true},                     // theta twice, reply
    {"nag_asgd", "_without_reply", 4, false},  // theta and v twice: momentum SGD
    {"nag_asgd", "", 5, true},
    {"multi_asgd", "", 5, true},
    {"dana_zero", "", 7, true},  // theta, v_i and S twice, reply
    {"dana_slim", "", 3, true},
};

}  // namespace

std::vector<BenchResult> BenchApply(const BenchOptions& options) {
  std::vector<Block> blocks;
  for (uint64_t at = 0; at < kSegmentElements; at += kMaxBlockElements) {
    blocks.push_back({at, kMaxBlockElements, false});
  }
  std::vector<float> theta(kElements);
  std::vector<float> reply(kElements);
  std::vector<float> gradient(kElements);
  for (uint64_t i = 0; i < kElements; ++i) {
    gradient[i] = static_cast<float>(RandomUniform(1, 3, i) - 0.5);
  }

  const double before = StreamTriad(1, options);
  std::vector<BenchResult> results;
  for (const char* const codec_name : {"one_bit", "none"}) {
    const Codec& codec = *FindCodec(codec_name);
    const uint64_t segment_bytes = EncodedBytes(codec, blocks);
    std::vector<uint8_t> payload(segment_bytes * kSegments);
    for (uint64_t segment = 0; segment < kSegments; ++segment) {
      EncodeSegment(codec, blocks, gradient.data() + segment * kSegmentElements, nullptr,
                    {}, payload.data() + segment * segment_bytes);
    }
    for (const Case& c : kCases) {
      const RuleSettings settings{.rule = c.rule, .momentum = 0.9f, .max_workers = kWorkers};
      std::vector<std::unique_ptr<UpdateRule>> rules;
      for (uint64_t segment = 0; segment < kSegments; ++segment) {
        rules.push_back(MakeUpdateRule(settings, kSegmentElements));
        for (uint32_t worker = 0; worker < kWorkers; ++worker) rules.back()->Join(worker);
      }
      UpdateContext context{.eta = 1e-3f};
      const double seconds = BestSeconds(options, [&] {
        for (uint64_t segment = 0; segment < kSegments; ++segment) {
          UpdateRule& rule = *rules[segment];
          const uint64_t base = segment * kSegmentElements;
          const uint8_t* in = payload.data() + segment * segment_bytes;
          rule.Begin(context);
          for (const Block& block : blocks) {
            alignas(64) float scratch[kMaxBlockElements];
            const float* decoded = codec.DecodeBlock(in, block.elements, {}, scratch);
            in += codec.BlockBytes(block.elements);
            rule.Update(context, {block.offset, block.elements, block.decayed}, decoded,
                        theta.data() + base,
                        c.reply ? reply.data() + base + block.offset : nullptr);
          }
        }
        ++context.version;
        context.worker = (context.worker + 1) % kWorkers;
      });
      const double bytes =
          c.floats_moved * sizeof(float) * kElements + static_cast<double>(payload.size());
      results.push_back({std::string("apply/") + c.rule + c.suffix + "/" + codec_name,
                         bytes / seconds / 1e9, "GB/s"});
    }
  }
  HoldAgainstStream(options, before, &results);
  return results;
}

}  // namespace foreshard::bench
