// Segment's replies: what goes out, and x_i, what each worker then holds.
//
// In most codecs a reply carries parameters. In the others (Codec::replies_carry_values)
// it carries C(r - x_i), r being what the rule sends, and both sides add the decoded
// value to x_i with the same addition: x_i += C(r - x_i). Blocks that stay in full
// precision (BlockCodec) carry r. What C loses stays in r - x_i, so that the next
// difference brings it: error feedback as in 1-bit Adam (arXiv 2102.02888), but without an
// error vector, since x_i is there.
//
// Both copies must be the same to the bit, so a difference is sent only where the worker
// holds x_i for certain. It names what it holds by its version; a version says that as
// long as a slot was sent one set of parameters at it. Whatever is sent at a version for
// the second time (the answer to a duplicate, a read without an update since, a repair)
// leaves the slot unsure: the next reply is in full precision, at a version of its own,
// and settles it. Reads and repairs are answered in full precision themselves: they are
// where a worker begins anew.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/vector_math.h"
#include "server/segment.h"
#include "server/segment_scratch.h"

namespace foreshard {
namespace {

bool IsAligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % alignof(float) == 0;
}

}  // namespace

const Codec& Segment::ReplyCodec(const Event& event, const Slot& slot) const {
  const Codec& plain = *codecs_.Find(CodecId::kNone);
  const Codec* codec = codecs_.Find(static_cast<CodecId>(event.reply_codec));
  if (codec == nullptr || event.kind == EventKind::kResend ||
      options_.plan.kind == TensorKind::kStatistic || event.held_version != slot.version_sent) {
    return plain;
  }
  // What fp16 or bf16 make of a dead tensor's block is no parameters.
  if (squeeze_ != nullptr) return plain;
  if (codec->replies_carry_values()) return *codec;
  if (!options_.keep_all_held || options_.synchronous || !slot.has_held || slot.unsure) return plain;
  const bool skipped = event.kind == EventKind::kSkip || event.kind == EventKind::kDiscard;
  const bool new_version =
      event.kind == EventKind::kPush || (skipped && version_ != slot.version_sent);
  return new_version ? *codec : plain;
}

Segment::Outgoing Segment::BeginReply(const Codec& codec, uint64_t version, uint32_t worker,
                                      Slot* slot, const Reply* reply) const {
  Outgoing outgoing = {.codec = &codec, .slot = slot, .out = reply != nullptr ? reply->data : nullptr};
  if (slot == nullptr || outgoing.out == nullptr) return outgoing;
  slot->held.resize(held_elements_);
  outgoing.key = ReplyKey(options_.seed, options_.plan.id, worker, version);
  return outgoing;
}

float* Segment::BlockTarget(const Block& block, const Outgoing& outgoing) const {
  const bool plain = BlockCodec(*outgoing.codec, block).id() == CodecId::kNone;
  return plain && IsAligned(outgoing.out) ? reinterpret_cast<float*>(outgoing.out)
                                          : ThreadScratch().reply;
}

void Segment::EmitBlock(size_t index, float* values, Outgoing* outgoing) {
  const Block& block = options_.plan.blocks[index];
  const Codec& codec = BlockCodec(*outgoing->codec, block);
  const CodecKey key = BlockKey(outgoing->key, block.offset);
  uint8_t* out = outgoing->out;
  outgoing->out += codec.BlockBytes(block.elements);
  const bool kept = outgoing->slot != nullptr && held_offsets_[index] != kNotHeld;
  float* held = kept ? outgoing->slot->held.data() + held_offsets_[index] : nullptr;
  if (codec.replies_carry_values()) {
    if (reinterpret_cast<const uint8_t*>(values) != out) {
      codec.EncodeBlock(values, nullptr, block.elements, key, out);
    }
    if (held == nullptr) return;
    const float* decoded = codec.DecodeBlock(out, block.elements, key, held);
    if (decoded != held) std::memcpy(held, decoded, block.elements * sizeof(float));
    return;
  }
  if (!kernels::SubtractFinite(values, held, block.elements)) {
    // Parameters that have run away: codecs take finite numbers only. The worker keeps
    // what it holds of this block until the next reply, in full precision.
    std::fill_n(values, block.elements, 0.0f);
    outgoing->whole = false;
  }
  codec.EncodeBlock(values, nullptr, block.elements, key, out);
  // The block's gradient is applied; its place is free.
  kernels::Add(held, codec.DecodeBlock(out, block.elements, key, ThreadScratch().gradient),
               block.elements);
}

void Segment::EndReply(const Outgoing& outgoing, Reply* reply) {
  reply->bytes = static_cast<uint64_t>(outgoing.out - reply->data);
  reply->codec = outgoing.codec->id();
  reply->parts = kParametersPart;
  reply->delta = !outgoing.codec->replies_carry_values();
  Slot* slot = outgoing.slot;
  reply->delta_base = reply->delta ? slot->version_sent : 0;
  if (slot == nullptr) return;
  const bool again = (slot->has_held || slot->unsure) && slot->version_sent == version_;
  slot->unsure = again || !outgoing.whole;
  slot->has_held = true;
  slot->version_sent = version_;
}

void Segment::WriteParameters(const UpdateContext& context, ReadMode mode, const Codec& codec,
                              Slot* slot, Reply* reply) {
  Outgoing outgoing = BeginReply(codec, version_, context.worker, slot, reply);
  if (outgoing.out == nullptr) return;
  for (size_t b = 0; b < options_.plan.blocks.size(); ++b) {
    const Block& block = options_.plan.blocks[b];
    float* values = BlockTarget(block, outgoing);
    if (mode == ReadMode::kReaderMaster) {
      std::memcpy(values, theta_.data() + block.offset, block.elements * sizeof(float));
    } else {
      rule_->Reply(context, RunOf(block), theta_.data(), values);
    }
    EmitBlock(b, values, &outgoing);
  }
  EndReply(outgoing, reply);
}

}  // namespace foreshard
