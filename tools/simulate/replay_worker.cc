#include "tools/simulate/replay_worker.h"

#include <algorithm>

namespace foreshard {
namespace {

bool IsTrainable(const SegmentPlan& segment) { return segment.kind == TensorKind::kTrainable; }

ByteSpan BytesOf(const float* values, uint64_t elements) {
  return {reinterpret_cast<const uint8_t*>(values), elements * sizeof(float)};
}

}  // namespace

bool ConsumesTicket(EventKind kind) {
  return kind == EventKind::kPush || kind == EventKind::kSkip || kind == EventKind::kDiscard;
}

bool SendsToWorker(EventKind kind) {
  return ConsumesTicket(kind) || kind == EventKind::kResend || kind == EventKind::kRead ||
         kind == EventKind::kLearningRateRepair;
}

ReplayWorker::ReplayWorker(const PushEncoderOptions& encoder_options, const ShardPlan& shard_plan,
                           uint64_t statistic_elements, uint32_t statistics_interval)
    : plan(shard_plan),
      encoder(encoder_options),
      statistics(statistic_elements, statistics_interval),
      trainable_elements(encoder_options.trainable_elements),
      parameters(trainable_elements + statistic_elements),
      events(encoder_options.segments),
      before(encoder_options.segments),
      done(encoder_options.segments),
      sent(encoder_options.segments),
      clock(encoder_options.segments),
      share(encoder_options.segments),
      share_before(encoder_options.segments),
      payload(encoder_options.segments),
      waits(encoder_options.segments) {}

const ReplayWorker::Sent* ReplayWorker::HeldAt(uint32_t segment, uint64_t sequence) const {
  // The worker may have been gone before this segment saw the step.
  const Event* event =
      sequence <= events[segment].size() ? events[segment][sequence - 1] : nullptr;
  const std::vector<Sent>& replies = sent[segment];
  for (size_t i = replies.size(); i-- > 0;) {
    if (replies[i].sequence + 1 == sequence &&
        (event == nullptr || replies[i].version == event->held_version)) {
      return &replies[i];
    }
  }
  return nullptr;
}

void ReplayWorker::Hold(uint64_t sequence) {
  for (const SegmentPlan& segment : plan.segments()) {
    if (!IsTrainable(segment)) continue;
    const Sent* held = HeldAt(segment.id, sequence);
    std::copy(held->values.begin(), held->values.end(), parameters.begin() + segment.begin);
    clock[segment.id] = std::max(clock[segment.id], held->clock);
    sent[segment.id].clear();
  }
}

void ReplayWorker::MakePayloads(uint64_t ticket, const PushPlace& place, bool finite,
                                GradientComputer& computer) {
  if (finite) statistics.Add(computer.statistics());
  const bool with_statistics = finite && statistics.Take();
  statistics_pushes += with_statistics;
  for (const SegmentPlan& segment : plan.segments()) {
    const bool trainable = IsTrainable(segment);
    if (!trainable && !with_statistics) continue;
    const uint64_t number = trainable ? steps : statistics_pushes;
    waits[segment.id] = number <= events[segment.id].size();
    if (!finite) continue;
    std::vector<uint8_t>& out = payload[segment.id];
    ByteSpan plain;
    if (trainable) {
      float* gradient = computer.gradient() + segment.begin;
      encoder.Transform(segment, ticket, clock[segment.id], parameters.data() + segment.begin,
                        gradient);
      if (!encoder.plain(segment)) {
        out.resize(encoder.EncodedBytes(segment));
        encoder.Encode(segment, place, gradient, out.data());
        continue;
      }
      plain = BytesOf(gradient, segment.elements);
    } else {
      plain = BytesOf(statistics.values() + segment.begin - trainable_elements, segment.elements);
    }
    out.assign(plain.begin(), plain.end());
  }
}

ByteSpan ReplayWorker::MomentumToBring(const Event& event) const {
  const std::optional<uint64_t>& at = share[event.segment];
  if (!at.has_value() || *at >= event.ticket) return {};
  const SegmentPlan& segment = plan.segments()[event.segment];
  return BytesOf(encoder.momentum().data() + segment.begin, segment.elements);
}

void ReplayWorker::NoteShare(const Event& event, uint64_t segment_clock) {
  const SegmentPlan& segment = plan.segments()[event.segment];
  if (!encoder.has_momentum() || !IsTrainable(segment)) return;
  std::optional<uint64_t>& at = share[event.segment];
  std::optional<uint64_t>& at_before = share_before[event.segment];
  if (event.kind == EventKind::kPush) {
    at_before = at.value_or(0);
    at = segment_clock;
  } else if (event.kind == EventKind::kResend && event.sequence == steps) {
    // The answer that says at which rate was lost.
    at = at_before;
  } else if (event.kind == EventKind::kLearningRateRepair && at.has_value() && *at < event.ticket) {
    at = event.ticket;
    encoder.NoteRepaired(segment, event.ticket);
  }
}

}  // namespace foreshard
