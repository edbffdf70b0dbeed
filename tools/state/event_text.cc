#include "tools/state/event_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/codecs/codec.h"
#include "server/arrivals.h"

namespace foreshard {
namespace {

const char* ResultName(Result result) {
  switch (result) {
    case Result::kApplied: return "applied";
    case Result::kDuplicate: return "duplicate";
    case Result::kDiscarded: return "discarded";
    case Result::kSkipped: return "skipped";
    case Result::kCurrent: return "current";
    case Result::kInitialised: return "initialised";
    case Result::kPending: return "pending";
    case Result::kLate: return "late";
  }
  return "unknown";
}

const char* ReadName(uint64_t mode) {
  switch (static_cast<ReadMode>(mode)) {
    case ReadMode::kSlot: return "slot";
    case ReadMode::kReaderMaster: return "master";
    case ReadMode::kReaderLookahead: return "lookahead";
    case ReadMode::kRound: return "round";
  }
  return "unknown";
}

std::string CodecName(uint8_t id) {
  const Codec* codec = FindCodec(static_cast<CodecId>(id));
  return codec == nullptr ? absl::StrCat("codec ", id) : std::string(codec->name());
}

// Of one worker, not of the whole segment.
bool HasWorker(EventKind kind) {
  switch (kind) {
    case EventKind::kInitialise:
    case EventKind::kRoundClosed:
    case EventKind::kPhaseChange:
    case EventKind::kSnapshot:
    case EventKind::kViewChange:
    case EventKind::kDealerStop:
    case EventKind::kDealerViewKnown:
    case EventKind::kDealerAnnounce:
      return false;
    default:
      return true;
  }
}

// What the fields of this kind mean; empty where there are none.
std::string Fields(const Event& event, bool synchronous) {
  std::string text;
  const auto add = [&](const auto&... part) { absl::StrAppend(&text, text.empty() ? "" : ", ", part...); };
  const bool never = event.argument == ~uint64_t{0};
  switch (event.kind) {
    case EventKind::kPush:
    case EventKind::kResend:
    case EventKind::kDiscard:
    case EventKind::kSkip:
    case EventKind::kLate:
      add("sequence ", event.sequence);
      add("ticket ", event.ticket);
      add("held version ", event.held_version);
      if (synchronous) add("round ", event.argument);
      break;
    case EventKind::kRead: add("read of the ", ReadName(event.argument)); break;
    case EventKind::kRoundClosed: add("round ", event.argument); break;
    case EventKind::kAbsent:
      if (never) add("from now on");
      else add("in rounds before ", event.argument);
      break;
    case EventKind::kPhaseChange: add("phase ", event.argument, " from round ", event.ticket, " on"); break;
    case EventKind::kLearningRateRepair: add("step of the rate at ticket ", event.ticket); break;
    case EventKind::kViewChange: {
      add("view ", event.argument);
      for (const Member& member : ParseMembers(event.payload)) {
        add("worker ", member.worker, " from round ", member.first_round);
      }
      break;
    }
    case EventKind::kDealerFetch: add("up to ", event.argument, " tickets"); break;
    case EventKind::kDealerComplete: add("ticket ", event.argument); break;
    case EventKind::kDealerSkipTo: add("to round ", event.argument); break;
    case EventKind::kDealerViewKnown: add("view ", event.argument); break;
    case EventKind::kDealerAnnounce: add("phase ", event.argument); break;
    default: break;
  }
  if (event.payload.bytes > 0 && event.kind != EventKind::kViewChange) {
    add(CodecName(event.codec));
    add(event.payload.bytes, " bytes");
  }
  return text;
}

}  // namespace

std::string EventText(const Event& event, const Effect& effect) {
  std::string text = absl::StrCat(event.number, " ", ToString(event.kind));
  if (effect.segment != nullptr) absl::StrAppend(&text, " of segment ", event.segment);
  if (HasWorker(event.kind)) absl::StrAppend(&text, " by worker ", event.worker);
  const bool synchronous = effect.segment != nullptr && effect.outcome.members > 0;
  if (const std::string fields = Fields(event, synchronous); !fields.empty()) {
    absl::StrAppend(&text, ": ", fields);
  }
  if (effect.segment != nullptr) {
    const Outcome& outcome = effect.outcome;
    absl::StrAppend(&text, ": ");
    if (effect.kind != event.kind) absl::StrAppend(&text, "became ", ToString(effect.kind), ", ");
    absl::StrAppend(&text, ResultName(outcome.result), ", version ", outcome.version, ", clock ", outcome.clock);
    if (outcome.result == Result::kApplied || outcome.result == Result::kDiscarded) {
      absl::StrAppend(&text, ", lag ", outcome.lag);
    }
    if (synchronous) absl::StrAppend(&text, ", open round ", outcome.round);
    return text;
  }
  if (event.kind == EventKind::kDealerFetch) {
    absl::StrAppend(&text, ": dealt ", effect.deal.tickets.empty() ? "none" : absl::StrJoin(effect.deal.tickets, " "));
  }
  absl::StrAppend(&text, ": ", effect.dealer->completed_tickets(), " of ", effect.dealer->total_tickets(),
                  " complete");
  return text;
}

nlohmann::ordered_json EventJson(uint32_t shard, const Event& event, const Effect& effect) {
  nlohmann::ordered_json json = {{"shard", shard}, {"number", event.number}, {"kind", std::string(ToString(event.kind))}};
  if (effect.segment != nullptr) {
    json["segment"] = event.segment;
  } else {
    json["segment"] = "dealer";
  }
  json["worker"] = event.worker;
  json["incarnation"] = event.incarnation;
  json["sequence"] = event.sequence;
  json["ticket"] = event.ticket;
  json["held_version"] = event.held_version;
  json["argument"] = event.argument;
  json["payload_bytes"] = event.payload.bytes;
  json["codec"] = CodecName(event.codec);
  if (effect.segment != nullptr) {
    json["did"] = std::string(ToString(effect.kind));
    json["result"] = ResultName(effect.outcome.result);
    json["version"] = effect.outcome.version;
    json["clock"] = effect.outcome.clock;
    json["lag"] = effect.outcome.lag;
    json["round"] = effect.outcome.round;
  } else {
    json["tickets"] = effect.deal.tickets;
    json["completed_tickets"] = effect.dealer->completed_tickets();
  }
  return json;
}

}  // namespace foreshard
