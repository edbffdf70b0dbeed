#include "server/lead_slots.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/job_parts.h"
#include "server/run_description.h"

namespace foreshard {

Deal LeadSlots::Apply(const DealerEvent& event, uint64_t incarnation, const v1::JobSpec& job,
                      uint64_t train_examples, Dealer* dealer) {
  const uint64_t before = dealer->completed_tickets();
  Deal deal = dealer->Apply(event);
  Slot& slot = slots_[event.worker];
  switch (event.kind) {
    case DealerEvent::Kind::kJoin:
      // One that was expired and comes back has what it had.
      if (incarnation > slot.known) slot.examples = 0;
      slot.dealing = incarnation;
      slot.known = std::max(slot.known, incarnation);
      break;
    case DealerEvent::Kind::kLost:
      slot.dealing = 0;
      break;
    case DealerEvent::Kind::kComplete:
      if (dealer->completed_tickets() > before) slot.examples += ExamplesOfTicket(job, train_examples, event.argument);
      break;
    default:
      break;
  }
  return deal;
}

absl::StatusOr<Deal> LeadSlots::Replay(const Event& event, const v1::JobSpec& job, uint64_t train_examples,
                                       Dealer* dealer) {
  const absl::StatusOr<DealerEvent> dealt = ToDealerEvent(event);
  if (!dealt.ok()) return dealt.status();
  if (event.worker >= size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", event.worker, ": the job has ", size(), " slots (training.max_workers)"));
  }
  return Apply(*dealt, event.incarnation, job, train_examples, dealer);
}

void LeadSlots::Save(v1::LeadState* state) const {
  state->clear_dealing();
  state->clear_known();
  state->clear_examples();
  for (const Slot& slot : slots_) {
    state->add_dealing(slot.dealing);
    state->add_known(slot.known);
    state->add_examples(slot.examples);
  }
}

absl::Status LeadSlots::Load(const v1::LeadState& state) {
  const int most = std::max({state.dealing_size(), state.known_size(), state.examples_size()});
  if (static_cast<uint32_t>(most) > size()) {
    return absl::DataLossError(
        absl::StrCat("what the lead knew is of ", most, " worker slots, and the job has ", size()));
  }
  std::vector<Slot> slots(slots_.size());
  for (int k = 0; k < state.dealing_size(); ++k) slots[k].dealing = state.dealing(k);
  for (int k = 0; k < state.known_size(); ++k) slots[k].known = state.known(k);
  for (int k = 0; k < state.examples_size(); ++k) slots[k].examples = state.examples(k);
  slots_ = std::move(slots);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<v1::LeadState>> ReadLeadFile(const Storage& storage) {
  const absl::StatusOr<std::string> text = storage.Read(kLeadFile);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  if (!text.ok()) return text.status();
  v1::LeadState state;
  if (absl::Status parsed = ParseText(*text, &state); !parsed.ok()) {
    return absl::DataLossError(absl::StrCat(storage.Describe(kLeadFile), " is damaged: ", parsed.message()));
  }
  state.DiscardUnknownFields();
  return state;
}

void TakeNewer(const v1::LeadState& newer, v1::LeadState* state) {
  if (newer.evaluations_size() > state->evaluations_size()) *state->mutable_evaluations() = newer.evaluations();
  if (state->stop_reason().empty()) state->set_stop_reason(newer.stop_reason());
  for (int slot = 0; slot < newer.introductions_size(); ++slot) {
    if (slot == state->introductions_size()) state->add_introductions();
    if (newer.introductions(slot).incarnation() > state->introductions(slot).incarnation()) {
      *state->mutable_introductions(slot) = newer.introductions(slot);
    }
  }
  if (newer.has_phases()) *state->mutable_phases() = newer.phases();
}

absl::StatusOr<v1::LeadState> LeadStateOf(const CheckpointManifest& checkpoint) {
  v1::LeadState state;
  const auto text = checkpoint.about.extra.find(kLeadStateKey);
  if (text == checkpoint.about.extra.end()) return state;
  if (absl::Status parsed = ParseText(text->second, &state); !parsed.ok()) {
    return absl::DataLossError(absl::StrCat("what the manifest has of the lead: ", parsed.message()));
  }
  state.DiscardUnknownFields();
  return state;
}

}  // namespace foreshard
