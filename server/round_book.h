// Which batches the members of a round compute, while members come and go: the dealer's
// book of rounds. A deterministic state machine, like the dealer that owns it.
//
//   RoundBook book({.batches_per_epoch = 469, .epochs = 5, .workers = 8});
//   book.Join(slot);                       // dealing begins when all 8 are there
//   auto deal = book.Next(slot);           // {ticket, round}
//   book.Complete(slot, ticket);
//
// A round is drawn up when the first member asks for it: each member, in slot order, gets
// a batch, those of lost workers first, then the next of the epoch. An epoch's remainder
// of fewer batches than members is dropped. Rounds that are drawn up have their members for
// good; who joins takes part from the second round after them on (`first_round`), so that
// every server can know it in time: neither that round nor the one before it is drawn up
// until its view has been acknowledged, so that no segment can open it without the member. Who
// is lost is left out from the next round drawn up on; servers hear of it with the view, and
// count the worker absent. A change of phase is announced with a view in the same way: it is
// in force from a round on before which two are not drawn up until the view is acknowledged,
// so that the round just before it can still become a fold.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/core/bytes.h"
#include "server/event.h"

namespace foreshard {

struct RoundBookOptions {
  uint64_t batches_per_epoch = 1;
  uint32_t epochs = 1;
  uint32_t workers = 1;  // dealing begins when so many have joined
};

struct RoundTicket {
  uint64_t ticket = 0;
  uint64_t round = 0;
};

// Thread-compatible.
class RoundBook {
 public:
  explicit RoundBook(const RoundBookOptions& options);

  void Join(uint32_t worker);
  // Its batches are dealt again.
  void Lose(uint32_t worker);
  // The worker's next batch; none: nothing to deal now, `withheld_by_view` says whether
  // because servers do not know of a new member or phase yet.
  std::optional<RoundTicket> Next(uint32_t worker, bool* withheld_by_view);
  // Takes no part in rounds before this one; what it was dealt for them goes back.
  void SkipTo(uint32_t worker, uint64_t round);
  // True where the ticket was in the worker's hands, or lost and not dealt again.
  bool Complete(uint32_t worker, uint64_t ticket);
  // Every server knows the views up to this one.
  void Acknowledge(uint64_t view);
  // Rounds change to this phase, as soon as all servers can know of it (announced_round).
  void Announce(Phase phase);

  bool started() const { return started_; }
  // More members than an epoch has batches could never fill a round: nobody joins any more.
  bool full() const { return members_.size() >= options_.batches_per_epoch; }
  bool finished() const;
  // Rises with each change of members after the start; 0: the slots 0 to workers - 1.
  uint64_t view() const { return view_; }
  uint64_t acknowledged_view() const { return acknowledged_; }
  // The newest phase that was announced, and the first round it is in force; 0: none was.
  Phase announced_phase() const { return phase_; }
  uint64_t announced_round() const { return phase_round_; }
  struct Member {
    uint64_t first_round = 0;
    uint64_t view = 0;        // the first it is in
    uint64_t next_round = 0;  // of its next batch
    std::map<uint64_t, uint64_t> hand;  // ticket to round
  };
  // By slot.
  const std::map<uint32_t, Member>& members() const { return members_; }
  // Rises whenever asking for a batch has changed something, also where none was dealt.
  uint64_t changes() const { return changes_; }
  // The first round that is not drawn up yet.
  uint64_t next_round() const { return next_round_; }

  // Batches that were or will be dealt, with as many members as there are now.
  uint64_t total() const;
  uint64_t completed() const { return completed_; }
  uint64_t dealt_again() const { return dealt_again_; }
  uint32_t completed_epochs() const;

  void Save(ByteWriter* writer) const;
  // False where the bytes contradict each other.
  bool Load(ByteReader* reader);

 private:
  // Draws the next round up. False: nothing is left, or its members or phase are not known yet.
  bool DrawUp(bool* withheld_by_view);
  void TakeBack(uint64_t ticket) { again_.insert(ticket); }
  // Takes a batch out of the epoch's count: completed, or dropped.
  void Settle(uint64_t ticket) { --left_[ticket / options_.batches_per_epoch]; }

  RoundBookOptions options_;
  std::map<uint32_t, Member> members_;
  bool started_ = false;
  uint64_t view_ = 0, acknowledged_ = 0;
  Phase phase_ = Phase::kFull;
  uint64_t phase_round_ = 0, phase_view_ = 0;
  uint64_t next_ = 0;        // the next fresh batch
  uint64_t next_round_ = 0;
  std::set<uint64_t> again_;
  // Drawn up and not fetched yet: by round, worker to ticket.
  std::map<uint64_t, std::map<uint32_t, uint64_t>> rounds_;
  std::vector<uint64_t> left_;  // by epoch: batches neither completed nor dropped
  uint64_t completed_ = 0, dropped_ = 0, dealt_again_ = 0;
  uint64_t changes_ = 0;  // of this object; not saved
};

}  // namespace foreshard
