#include "server/dealer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/core/bytes.h"

namespace foreshard {
namespace {

constexpr uint32_t kMagic = 0x4c445346;  // "FSDL"
constexpr uint16_t kFormat = 4;  // 2: clocks and admission; 3: members of rounds; 4: phases
// Those before 4 were never released.
constexpr FormatRange kFormats = {.oldest = 4, .newest = kFormat};

}  // namespace

Event ToEvent(const DealerEvent& event) {
  return {.kind = static_cast<EventKind>(static_cast<uint8_t>(EventKind::kDealerJoin) +
                                         static_cast<uint8_t>(event.kind) - 1),
          .segment = kDealerSegment,
          .worker = event.worker,
          .argument = event.argument};
}

absl::StatusOr<DealerEvent> ToDealerEvent(const Event& event) {
  if (event.segment != kDealerSegment || event.kind < EventKind::kDealerJoin ||
      event.kind > EventKind::kDealerAnnounce) {
    return absl::InvalidArgumentError(
        absl::StrCat("event kind ", static_cast<int>(event.kind), " is not a dealer's"));
  }
  if (event.kind == EventKind::kDealerAnnounce && event.argument > static_cast<uint64_t>(Phase::kFrozen)) {
    return absl::InvalidArgumentError(absl::StrCat("there is no phase ", event.argument, " to announce"));
  }
  return DealerEvent{static_cast<DealerEvent::Kind>(static_cast<uint8_t>(event.kind) -
                                                    static_cast<uint8_t>(EventKind::kDealerJoin) + 1),
                     event.worker, event.argument};
}

absl::Status Dealer::Check(const DealerOptions& options) {
  if (options.batches_per_epoch == 0 || options.epochs == 0 || options.max_outstanding == 0) {
    return absl::InvalidArgumentError("dealer: needs at least one batch, epoch and outstanding ticket");
  }
  if (options.synchronous_workers > options.batches_per_epoch) {
    return absl::InvalidArgumentError(
        absl::StrCat("dealer: an epoch has ", options.batches_per_epoch, " batches, too few for ",
                     options.synchronous_workers,
                     " synchronous workers; use smaller batches or fewer workers"));
  }
  if (options.views && options.synchronous_workers == 0) {
    return absl::InvalidArgumentError("dealer: members of rounds without rounds");
  }
  if (options.synchronous_workers > 0 &&
      (options.staleness_bound.has_value() || options.ramp_tickets > 0)) {
    return absl::InvalidArgumentError(
        "dealer: synchronous workers are in step anyway; take staleness bound and ramp out");
  }
  if (options.ramp_tickets > 0 && options.ramp_workers == 0) {
    return absl::InvalidArgumentError("dealer: a ramp needs at least one worker");
  }
  return absl::OkStatus();
}

Dealer::Dealer(const DealerOptions& options) : options_(options) {
  const uint64_t workers = std::max(options.synchronous_workers, 1u);
  per_epoch_ = options.batches_per_epoch / workers * workers;
  total_ = per_epoch_ * options.epochs;
  completed_.resize(options.epochs);
  if (options.views) {
    book_.emplace(RoundBookOptions{.batches_per_epoch = options.batches_per_epoch,
                                   .epochs = options.epochs,
                                   .workers = options.synchronous_workers});
  }
}

uint64_t Dealer::Ticket(uint32_t rank, uint64_t step) const {
  const uint64_t steps = per_epoch_ / options_.synchronous_workers;
  return step / steps * options_.batches_per_epoch + step % steps * options_.synchronous_workers + rank;
}

bool Dealer::finished() const {
  return stopped_ || (book_.has_value() ? book_->finished() : completed_total_ == total_);
}

uint64_t Dealer::outstanding(uint32_t worker) const {
  if (book_.has_value()) return held(worker).size();
  const auto at = hands_.find(worker);
  return at == hands_.end() ? 0 : at->second.tickets.size();
}

std::vector<uint64_t> Dealer::held(uint32_t worker) const {
  if (book_.has_value()) {
    std::vector<uint64_t> tickets;
    const auto member = book_->members().find(worker);
    if (member == book_->members().end()) return tickets;
    for (const auto& [ticket, round] : member->second.hand) tickets.push_back(ticket);
    return tickets;
  }
  const auto at = hands_.find(worker);
  if (at == hands_.end()) return {};
  return {at->second.tickets.begin(), at->second.tickets.end()};
}

uint64_t Dealer::clock(uint32_t worker) const {
  const auto at = hands_.find(worker);
  return at == hands_.end() ? 0 : at->second.clock;
}

std::optional<uint64_t> Dealer::slowest_clock() const {
  std::optional<uint64_t> slowest;
  for (const auto& [worker, hand] : hands_) {
    if (!hand.admitted || (next_ == total_ && hand.tickets.empty())) continue;
    slowest = std::min(slowest.value_or(hand.clock), hand.clock);
  }
  return slowest;
}

bool Dealer::admitted(uint32_t worker) const {
  const auto at = hands_.find(worker);
  return at != hands_.end() && at->second.admitted;
}

uint64_t Dealer::admitted_workers() const {
  if (next_ >= options_.ramp_tickets) return hands_.size();
  // Within 64 bits for every job that ValidateJobSpec lets through.
  const uint64_t planned = 1 + (options_.ramp_workers - 1) * next_ / options_.ramp_tickets;
  return std::min<uint64_t>(hands_.size(), planned);
}

void Dealer::UpdateAdmission() {
  const std::optional<uint64_t> slowest = slowest_clock();
  uint64_t left = admitted_workers();
  for (auto& [worker, hand] : hands_) {
    const bool admitted = left > 0;
    if (admitted) --left;
    // Who comes to the others is not waited for until it has caught up.
    if (admitted && !hand.admitted) hand.clock = std::max(hand.clock, slowest.value_or(0));
    hand.admitted = admitted;
  }
}

void Dealer::Finish(uint64_t ticket) {
  ++completed_total_;
  ++completed_[ticket / options_.batches_per_epoch];
  while (completed_epochs_ < completed_.size() && completed_[completed_epochs_] == per_epoch_) {
    ++completed_epochs_;
  }
}

std::optional<uint64_t> Dealer::Draw(uint32_t worker, const Hand& hand, Withheld* withheld) {
  *withheld = Withheld::kAllDealt;
  if (options_.synchronous_workers > 0) {
    if (worker >= options_.synchronous_workers) return std::nullopt;
    Steps& steps = steps_[worker];
    if (steps.next * options_.synchronous_workers >= total_) return std::nullopt;
    redealt_ += steps.next < steps.dealt;
    steps.dealt = std::max(steps.dealt, steps.next + 1);
    return Ticket(worker, steps.next++);
  }
  if (again_.empty() && next_ == total_) return std::nullopt;
  if (!hand.admitted) {
    *withheld = Withheld::kRamp;
    return std::nullopt;
  }
  if (options_.staleness_bound.has_value()) {
    const std::optional<uint64_t> slowest = slowest_clock();
    if (slowest.has_value() &&
        hand.clock + hand.tickets.size() > *slowest + *options_.staleness_bound) {
      *withheld = Withheld::kBound;
      return std::nullopt;
    }
  }
  if (again_.empty()) return next_++;
  const uint64_t ticket = *again_.begin();
  again_.erase(again_.begin());
  ++redealt_;
  return ticket;
}

Deal Dealer::Fetch(uint32_t worker, uint64_t count) {
  Deal deal;
  const auto at = hands_.find(worker);
  if (at == hands_.end() || finished()) return deal;
  Hand& hand = at->second;
  while (deal.tickets.size() < count) {
    if (hand.tickets.size() >= options_.max_outstanding) {
      deal.withheld = Withheld::kHandsFull;
      break;
    }
    Withheld withheld;
    const std::optional<uint64_t> ticket = Draw(worker, hand, &withheld);
    if (!ticket.has_value()) {
      deal.withheld = withheld;
      break;
    }
    hand.tickets.insert(*ticket);
    deal.tickets.push_back(*ticket);
    if (next_ <= options_.ramp_tickets) UpdateAdmission();
  }
  return deal;
}

Deal Dealer::ApplyToRounds(const DealerEvent& event) {
  Deal deal;
  switch (event.kind) {
    case DealerEvent::Kind::kJoin:
      book_->Join(event.worker);
      break;
    case DealerEvent::Kind::kFetch:
      while (!finished() && deal.tickets.size() < event.argument) {
        if (outstanding(event.worker) >= options_.max_outstanding) {
          deal.withheld = Withheld::kHandsFull;
          break;
        }
        bool by_view = false;
        const std::optional<RoundTicket> next = book_->Next(event.worker, &by_view);
        if (!next.has_value()) {
          deal.withheld = by_view             ? Withheld::kView
                          : !book_->started() ? Withheld::kMembers
                                              : Withheld::kAllDealt;
          break;
        }
        deal.tickets.push_back(next->ticket);
        deal.rounds.push_back(next->round);
      }
      break;
    case DealerEvent::Kind::kComplete:
      book_->Complete(event.worker, event.argument);
      break;
    case DealerEvent::Kind::kLost:
      book_->Lose(event.worker);
      break;
    case DealerEvent::Kind::kStop:
      stopped_ = true;
      break;
    case DealerEvent::Kind::kSkipTo:
      book_->SkipTo(event.worker, event.argument);
      break;
    case DealerEvent::Kind::kViewKnown:
      book_->Acknowledge(event.argument);
      break;
    case DealerEvent::Kind::kAnnounce:
      book_->Announce(static_cast<Phase>(event.argument));
      break;
  }
  deal.finished = finished();
  return deal;
}

Deal Dealer::Apply(const DealerEvent& event) {
  if (book_.has_value()) return ApplyToRounds(event);
  Deal deal;
  switch (event.kind) {
    case DealerEvent::Kind::kJoin:
      if (hands_.try_emplace(event.worker).second) UpdateAdmission();
      break;
    case DealerEvent::Kind::kFetch:
      deal = Fetch(event.worker, event.argument);
      break;
    case DealerEvent::Kind::kComplete: {
      const auto at = hands_.find(event.worker);
      const bool in_hand = at != hands_.end() && at->second.tickets.erase(event.argument) > 0;
      if (in_hand) ++at->second.clock;
      // A worker given up for lost may yet report: where its batch was not dealt
      // again meanwhile, its push counts.
      if (in_hand || again_.erase(event.argument) > 0) Finish(event.argument);
      break;
    }
    case DealerEvent::Kind::kLost: {
      const auto at = hands_.find(event.worker);
      if (at == hands_.end()) break;
      std::set<uint64_t>& tickets = at->second.tickets;
      if (options_.synchronous_workers > 0) {
        // Whoever takes the rank over goes on at the first step that is missing.
        if (event.worker < options_.synchronous_workers) {
          steps_[event.worker].next -= tickets.size();
        }
      } else {
        again_.merge(tickets);
      }
      hands_.erase(at);
      UpdateAdmission();
      break;
    }
    case DealerEvent::Kind::kStop:
      stopped_ = true;
      break;
    case DealerEvent::Kind::kSkipTo:
    case DealerEvent::Kind::kViewKnown:
    case DealerEvent::Kind::kAnnounce:
      break;
  }
  deal.finished = finished();
  return deal;
}

std::string Dealer::Save() const {
  ByteWriter writer;
  writer.Put(kMagic);
  writer.Put(kFormat);
  writer.Put(options_.batches_per_epoch);
  writer.Put(options_.epochs);
  writer.Put(options_.synchronous_workers);
  writer.Put(options_.views);
  writer.Put(options_.max_outstanding);
  writer.Put(options_.staleness_bound.has_value());
  writer.Put(options_.staleness_bound.value_or(0));
  writer.Put(options_.ramp_tickets);
  writer.Put(options_.ramp_workers);
  writer.Put(next_);
  writer.Put(completed_total_);
  writer.Put(redealt_);
  writer.Put(completed_epochs_);
  writer.Put(stopped_);
  const auto put_set = [&](const std::set<uint64_t>& tickets) {
    writer.Put<uint64_t>(tickets.size());
    for (const uint64_t ticket : tickets) writer.Put(ticket);
  };
  put_set(again_);
  writer.Put<uint64_t>(hands_.size());
  for (const auto& [worker, hand] : hands_) {
    writer.Put(worker);
    writer.Put(hand.clock);
    writer.Put(hand.admitted);
    put_set(hand.tickets);
  }
  writer.Put<uint64_t>(steps_.size());
  for (const auto& [rank, steps] : steps_) {
    writer.Put(rank);
    writer.Put(steps.next);
    writer.Put(steps.dealt);
  }
  for (const uint64_t count : completed_) writer.Put(count);
  if (book_.has_value()) book_->Save(&writer);
  return writer.TakeSealed();
}

absl::Status Dealer::Load(std::string_view bytes) {
  const absl::StatusOr<std::string_view> body = Unsealed(bytes);
  if (!body.ok()) {
    return absl::DataLossError(absl::StrCat("dealer: saved state ", body.status().message()));
  }
  ByteReader reader(*body);
  if (reader.Get<uint32_t>() != kMagic) return absl::DataLossError("dealer state: wrong magic");
  if (absl::Status known = CheckFormat("the dealer's saved state", reader.Get<uint16_t>(), kFormats);
      !known.ok()) {
    return known;
  }
  if (reader.Get<uint64_t>() != options_.batches_per_epoch || reader.Get<uint32_t>() != options_.epochs ||
      reader.Get<uint32_t>() != options_.synchronous_workers ||
      reader.Get<bool>() != options_.views ||
      reader.Get<uint32_t>() != options_.max_outstanding ||
      reader.Get<bool>() != options_.staleness_bound.has_value() ||
      reader.Get<uint32_t>() != options_.staleness_bound.value_or(0) ||
      reader.Get<uint64_t>() != options_.ramp_tickets || reader.Get<uint32_t>() != options_.ramp_workers) {
    return absl::InvalidArgumentError(
        "dealer state: of a job with other batches, epochs, workers or bounds than this one");
  }
  Dealer loaded(options_);
  loaded.next_ = reader.Get<uint64_t>();
  loaded.completed_total_ = reader.Get<uint64_t>();
  loaded.redealt_ = reader.Get<uint64_t>();
  loaded.completed_epochs_ = reader.Get<uint32_t>();
  loaded.stopped_ = reader.Get<bool>();
  // Tickets, steps and epochs that there are: they index what follows.
  bool fits = loaded.next_ <= total_ && loaded.completed_epochs_ <= options_.epochs;
  const auto get_set = [&](std::set<uint64_t>& tickets) {
    const auto size = reader.Get<uint64_t>();
    for (uint64_t k = 0; k < size && reader.ok(); ++k) {
      const auto ticket = reader.Get<uint64_t>();
      fits &= ticket / options_.batches_per_epoch < options_.epochs;
      tickets.insert(ticket);
    }
  };
  get_set(loaded.again_);
  const auto workers = reader.Get<uint64_t>();
  for (uint64_t k = 0; k < workers && reader.ok(); ++k) {
    const auto worker = reader.Get<uint32_t>();
    Hand& hand = loaded.hands_[worker];
    hand.clock = reader.Get<uint64_t>();
    hand.admitted = reader.Get<bool>();
    get_set(hand.tickets);
  }
  const auto ranks = reader.Get<uint64_t>();
  for (uint64_t k = 0; k < ranks && reader.ok(); ++k) {
    const auto rank = reader.Get<uint32_t>();
    Steps& steps = loaded.steps_[rank];
    steps.next = reader.Get<uint64_t>();
    steps.dealt = reader.Get<uint64_t>();
    fits &= rank < options_.synchronous_workers && steps.next <= steps.dealt && steps.dealt <= total_;
  }
  // Of a lost worker of rounds as many steps are taken back as it had tickets.
  for (const auto& [worker, hand] : loaded.hands_) {
    const auto steps = loaded.steps_.find(worker);
    fits &= worker >= options_.synchronous_workers || hand.tickets.empty() ||
            (steps != loaded.steps_.end() && hand.tickets.size() <= steps->second.next);
  }
  for (uint64_t& count : loaded.completed_) count = reader.Get<uint64_t>();
  const bool rounds_fit = !loaded.book_.has_value() || loaded.book_->Load(&reader);
  if (!rounds_fit || !reader.ok() || reader.left() != 0) return absl::DataLossError("dealer state: lengths contradict");
  if (!fits) return absl::DataLossError("dealer state: has tickets, steps or epochs that the job does not have");
  *this = std::move(loaded);
  return absl::OkStatus();
}

}  // namespace foreshard
