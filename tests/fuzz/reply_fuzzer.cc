// The parameters of a server's reply as a worker reads them, over pieces cut anywhere: what has
// another length, or is no difference, leaves the worker's parameters as they were.
#include "tests/fuzz/fuzz.h"
#include "worker/reply_reader.h"

namespace foreshard::fuzz {
namespace {

constexpr uint32_t kBlockElements = 40;

// Blocks as large as may be, one in full precision, and a rest.
SegmentPlan MakePlan() {
  const Schema schema = Schema::Create({{"w", {10, 10}}, {"bias", {40}}, {"b", {15}}}).value();
  return ShardPlan::Create(schema, {.segment_elements = 1000,
                                    .block_elements = kBlockElements,
                                    .full_precision = {"bias"}})
      .value()
      .segments()
      .front();
}

void Run(ByteSpan bytes) {
  static const SegmentPlan& plan = *new SegmentPlan(MakePlan());
  Input input(bytes);
  CodecSettings settings;
  settings.bits = kMinCodecBits + static_cast<uint32_t>(input.Below(kMaxCodecBits - kMinCodecBits + 1));
  settings.fraction = static_cast<float>(1 + input.Below(64)) / 64;
  const auto names = CodecNames();
  const CodecSet codecs(settings);
  const Codec& codec = *codecs.Find(names[input.Below(names.size())]);
  const CodecKey key = {.shared = input.Take<uint64_t>(), .own = input.Take<uint64_t>()};
  const size_t cut = 1 + input.Below(90);

  ByteSpan rest = input.rest();
  const ByteSpan whole_piece = rest;
  std::vector<ByteSpan> pieces;
  for (; !rest.empty(); rest.remove_prefix(std::min(cut, rest.size()))) {
    pieces.push_back(rest.first(std::min(cut, rest.size())));
  }
  const Payload cut_payload = {pieces, whole_piece.size()};
  const Payload whole = {absl::MakeConstSpan(&whole_piece, 1), whole_piece.size()};

  // Of exactly its size, so that a number too many is out of bounds.
  const std::vector<float> held(plan.elements, 0.5f);
  std::vector<float> values = held, same = held;
  ReplyReader reader;
  const absl::Status read = reader.Read(plan, codec, key, cut_payload, values.data());
  FUZZ_CHECK(reader.Read(plan, codec, key, whole, same.data()).ok() == read.ok());
  FUZZ_CHECK(std::memcmp(values.data(), same.data(), values.size() * sizeof(float)) == 0);
  if (!read.ok()) FUZZ_CHECK(values == held);
  FUZZ_CHECK(read.ok() || whole.bytes != EncodedBytes(codec, plan.blocks) || !codec.replies_carry_values());
}

Seeds MakeSeeds() {
  Seeds seeds;
  const SegmentPlan plan = MakePlan();
  const auto names = CodecNames();
  CodecSettings settings;
  settings.fraction = 2.0f / 64;
  const CodecSet codecs(settings);
  const CodecKey key = {.shared = 11, .own = 12};
  for (size_t k = 0; k < names.size(); ++k) {
    std::vector<float> values(plan.elements);
    for (size_t e = 0; e < values.size(); ++e) values[e] = 0.25f * static_cast<float>(e % 9) - 1;
    ByteWriter head;
    head.Put<uint8_t>(kDefaultCodecBits - kMinCodecBits);
    head.Put<uint8_t>(1);
    head.Put(static_cast<uint8_t>(k));
    head.Put<uint64_t>(key.shared);
    head.Put<uint64_t>(key.own);
    head.Put<uint8_t>(30);
    const Codec& codec = *codecs.Find(names[k]);
    std::string bytes(EncodedBytes(codec, plan.blocks), '\0');
    EncodeSegment(codec, plan.blocks, values.data(), nullptr, key, reinterpret_cast<uint8_t*>(bytes.data()));
    seeds[std::string(names[k])] = head.data() + bytes;
  }
  return seeds;
}

const Registration registration({.name = "reply", .run = Run, .seeds = MakeSeeds});

}  // namespace
}  // namespace foreshard::fuzz
