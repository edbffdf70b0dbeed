#include "server/round_book.h"

#include <algorithm>

namespace foreshard {

RoundBook::RoundBook(const RoundBookOptions& options)
    : options_(options), left_(options.epochs, options.batches_per_epoch) {}

void RoundBook::Join(uint32_t worker) {
  if (members_.count(worker) > 0 || full()) return;
  Member member;
  if (started_) {
    member.first_round = next_round_ + 1;
    member.view = ++view_;
  }
  member.next_round = member.first_round;
  members_[worker] = member;
  if (!started_ && members_.size() >= options_.workers) started_ = true;
}

void RoundBook::Lose(uint32_t worker) {
  const auto at = members_.find(worker);
  if (at == members_.end()) return;
  for (const auto& [ticket, round] : at->second.hand) TakeBack(ticket);
  for (auto& [round, tickets] : rounds_) {
    const auto ticket = tickets.find(worker);
    if (ticket == tickets.end()) continue;
    TakeBack(ticket->second);
    tickets.erase(ticket);
  }
  members_.erase(at);
  // Nobody needs to hear of it when there are no rounds to come.
  if (started_ && !finished()) ++view_;
}

void RoundBook::Announce(Phase phase) {
  if (!started_ || finished()) return;
  phase_ = phase;
  phase_round_ = next_round_ + 3;
  phase_view_ = ++view_;
}

bool RoundBook::DrawUp(bool* withheld_by_view) {
  if (phase_view_ > acknowledged_ && phase_round_ <= next_round_ + 2) {
    *withheld_by_view = true;
    return false;
  }
  std::vector<uint32_t> present;
  uint64_t earliest = ~uint64_t{0};
  for (const auto& [worker, member] : members_) {
    earliest = std::min(earliest, member.first_round);
    if (member.first_round > next_round_ + 1) continue;
    if (member.view > acknowledged_) {
      *withheld_by_view = true;
      return false;
    }
    if (member.first_round <= next_round_) present.push_back(worker);
  }
  if (present.empty()) {
    // All that were there have gone; the rounds in between belong to nobody.
    if (members_.empty()) return false;
    next_round_ = earliest;
    ++changes_;
    return DrawUp(withheld_by_view);
  }
  const uint64_t per_epoch = options_.batches_per_epoch;
  const uint64_t all = per_epoch * options_.epochs;
  for (;;) {
    uint64_t fresh = next_ == all ? 0 : per_epoch - next_ % per_epoch;
    if (again_.size() + fresh >= present.size()) break;
    // Too few for a round: those of the epoch are dropped; at the end of the job all are.
    ++changes_;
    for (; fresh > 0; --fresh) {
      Settle(next_++);
      ++dropped_;
    }
    if (next_ < all) continue;
    for (const uint64_t ticket : again_) Settle(ticket);
    dropped_ += again_.size();
    again_.clear();
    return false;
  }
  ++changes_;
  std::map<uint32_t, uint64_t>& tickets = rounds_[next_round_++];
  for (const uint32_t worker : present) {
    if (again_.empty()) {
      tickets[worker] = next_++;
    } else {
      tickets[worker] = *again_.begin();
      again_.erase(again_.begin());
      ++dealt_again_;
    }
  }
  return true;
}

std::optional<RoundTicket> RoundBook::Next(uint32_t worker, bool* withheld_by_view) {
  *withheld_by_view = false;
  const auto at = members_.find(worker);
  if (at == members_.end() || !started_) return std::nullopt;
  Member& member = at->second;
  for (;;) {
    // Rounds that were drawn up, or passed over, without it.
    while (member.next_round < next_round_) {
      ++changes_;
      const auto drawn = rounds_.lower_bound(member.next_round);
      if (drawn == rounds_.end()) {
        member.next_round = next_round_;
        break;
      }
      const uint64_t round = drawn->first;
      member.next_round = round + 1;
      const auto ticket = drawn->second.find(worker);
      if (ticket == drawn->second.end()) continue;
      const RoundTicket dealt = {.ticket = ticket->second, .round = round};
      drawn->second.erase(ticket);
      if (drawn->second.empty()) rounds_.erase(drawn);
      member.hand[dealt.ticket] = round;
      return dealt;
    }
    if (!DrawUp(withheld_by_view)) return std::nullopt;
  }
}

void RoundBook::SkipTo(uint32_t worker, uint64_t round) {
  const auto at = members_.find(worker);
  if (at == members_.end()) return;
  Member& member = at->second;
  // No further than there are rounds.
  round = std::min(round, next_round_);
  for (auto ticket = member.hand.begin(); ticket != member.hand.end();) {
    if (ticket->second >= round) {
      ++ticket;
      continue;
    }
    TakeBack(ticket->first);
    ticket = member.hand.erase(ticket);
  }
  for (auto drawn = rounds_.lower_bound(member.next_round); drawn != rounds_.end() && drawn->first < round;) {
    const auto at_round = drawn++;
    const auto ticket = at_round->second.find(worker);
    if (ticket == at_round->second.end()) continue;
    TakeBack(ticket->second);
    at_round->second.erase(ticket);
    if (at_round->second.empty()) rounds_.erase(at_round);
  }
  member.next_round = std::max(member.next_round, round);
}

bool RoundBook::Complete(uint32_t worker, uint64_t ticket) {
  const auto at = members_.find(worker);
  const bool in_hand = at != members_.end() && at->second.hand.erase(ticket) > 0;
  // A worker given up for lost may yet report: where its batch was not dealt again
  // meanwhile, its push counts.
  if (!in_hand && again_.erase(ticket) == 0) return false;
  Settle(ticket);
  ++completed_;
  return true;
}

void RoundBook::Acknowledge(uint64_t view) {
  acknowledged_ = std::max(acknowledged_, std::min(view, view_));
}

bool RoundBook::finished() const {
  return std::all_of(left_.begin(), left_.end(), [](uint64_t left) { return left == 0; });
}

uint64_t RoundBook::total() const {
  const uint64_t per_epoch = options_.batches_per_epoch;
  const uint64_t workers = std::max<uint64_t>(started_ ? members_.size() : options_.workers, 1);
  // The epoch under way may still lose its remainder.
  const uint64_t begun = next_ / per_epoch + (next_ % per_epoch != 0);
  uint64_t to_drop = (options_.epochs - begun) * (per_epoch % workers);
  if (next_ % per_epoch != 0) to_drop += (per_epoch - next_ % per_epoch) % workers;
  return per_epoch * options_.epochs - dropped_ - to_drop;
}

uint32_t RoundBook::completed_epochs() const {
  uint32_t epochs = 0;
  while (epochs < left_.size() && left_[epochs] == 0) ++epochs;
  return epochs;
}

void RoundBook::Save(ByteWriter* writer) const {
  writer->Put(started_);
  writer->Put(view_);
  writer->Put(acknowledged_);
  writer->Put(phase_);
  writer->Put(phase_round_);
  writer->Put(phase_view_);
  writer->Put(next_);
  writer->Put(next_round_);
  writer->Put(completed_);
  writer->Put(dropped_);
  writer->Put(dealt_again_);
  writer->Put<uint64_t>(again_.size());
  for (const uint64_t ticket : again_) writer->Put(ticket);
  writer->Put<uint64_t>(members_.size());
  for (const auto& [worker, member] : members_) {
    writer->Put(worker);
    writer->Put(member.first_round);
    writer->Put(member.view);
    writer->Put(member.next_round);
    writer->Put<uint64_t>(member.hand.size());
    for (const auto& [ticket, round] : member.hand) {
      writer->Put(ticket);
      writer->Put(round);
    }
  }
  writer->Put<uint64_t>(rounds_.size());
  for (const auto& [round, tickets] : rounds_) {
    writer->Put(round);
    writer->Put<uint64_t>(tickets.size());
    for (const auto& [worker, ticket] : tickets) {
      writer->Put(worker);
      writer->Put(ticket);
    }
  }
  for (const uint64_t left : left_) writer->Put(left);
}

bool RoundBook::Load(ByteReader* reader) {
  started_ = reader->Get<bool>();
  view_ = reader->Get<uint64_t>();
  acknowledged_ = reader->Get<uint64_t>();
  phase_ = reader->Get<Phase>();
  phase_round_ = reader->Get<uint64_t>();
  phase_view_ = reader->Get<uint64_t>();
  next_ = reader->Get<uint64_t>();
  next_round_ = reader->Get<uint64_t>();
  completed_ = reader->Get<uint64_t>();
  dropped_ = reader->Get<uint64_t>();
  dealt_again_ = reader->Get<uint64_t>();
  const uint64_t all = options_.batches_per_epoch * options_.epochs;
  // Nothing lies further ahead than Join and Announce set it, so that no sum can overflow.
  bool fits = next_ <= all && phase_ <= Phase::kFrozen && next_round_ < ~uint64_t{0} / 2 &&
              phase_round_ <= next_round_ + 3;
  const auto ticket_of = [&] {
    const auto ticket = reader->Get<uint64_t>();
    fits &= ticket < all;
    return ticket;
  };
  for (auto left = reader->Get<uint64_t>(); left > 0 && reader->ok(); --left) again_.insert(ticket_of());
  for (auto left = reader->Get<uint64_t>(); left > 0 && reader->ok(); --left) {
    Member& member = members_[reader->Get<uint32_t>()];
    member.first_round = reader->Get<uint64_t>();
    member.view = reader->Get<uint64_t>();
    member.next_round = reader->Get<uint64_t>();
    fits &= member.first_round <= next_round_ + 2 && member.next_round <= next_round_ + 2;
    for (auto hand = reader->Get<uint64_t>(); hand > 0 && reader->ok(); --hand) {
      const uint64_t ticket = ticket_of();
      member.hand[ticket] = reader->Get<uint64_t>();
    }
  }
  for (auto left = reader->Get<uint64_t>(); left > 0 && reader->ok(); --left) {
    const auto round = reader->Get<uint64_t>();
    fits &= round < next_round_;
    std::map<uint32_t, uint64_t>& tickets = rounds_[round];
    for (auto count = reader->Get<uint64_t>(); count > 0 && reader->ok(); --count) {
      const auto worker = reader->Get<uint32_t>();
      tickets[worker] = ticket_of();
    }
  }
  for (uint64_t& left : left_) {
    left = reader->Get<uint64_t>();
    fits &= left <= options_.batches_per_epoch;
  }
  return fits && reader->ok();
}

}  // namespace foreshard
