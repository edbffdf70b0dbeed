// Deals batches: one seeded shuffle an epoch, in the order in which workers ask.
// The second deterministic state machine, on the lead. It deals ticket numbers;
// which examples a ticket stands for is a pure function of the seed that every
// worker computes.
//
//   Dealer dealer({.batches_per_epoch = 469, .epochs = 5});
//   dealer.Apply({DealerEvent::Kind::kJoin, slot});
//   Deal deal = dealer.Apply({DealerEvent::Kind::kFetch, slot, 2});
//
// Two bounds, both for asynchronous dealing only:
//
// Stale synchronous parallel (Ho et al., NeurIPS 2013). A worker's clock counts the
// batches it completed. It is dealt a batch only while
//   clock + batches in its hands <= slowest clock + s,
// so nobody ever has more than s + 1 batches behind it and in its hands than the
// slowest has behind it, and s = 0 is lock-step. A joiner starts at the slowest
// clock. Once the last fresh batch is dealt, workers with empty hands are through
// and hold nobody back.
//
// Worker ramp. While fewer than R = ramp_tickets batches are dealt, only
//   min(joined, 1 + floor((N - 1) * dealt / R)),  N = ramp_workers,
// workers are dealt to, those of the lowest slots. The others neither have a clock
// nor hold anybody back; who is admitted starts at the slowest clock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/event.h"
#include "server/round_book.h"

namespace foreshard {

struct DealerOptions {
  uint64_t batches_per_epoch = 1;
  uint32_t epochs = 1;
  // 0: asynchronous, in arrival order. n: synchronous, worker of rank r gets
  // ticket step * n + r; an epoch's remainder of fewer than n batches is dropped.
  uint32_t synchronous_workers = 0;
  // Synchronous: members may come and go (server/round_book.h); else ranks are for good, and
  // whoever takes one over goes on at its first missing batch.
  bool views = false;
  uint32_t max_outstanding = 8;  // tickets in a worker's hands at most
  // Batches that a worker may be ahead of the slowest; none: no bound.
  std::optional<uint32_t> staleness_bound;
  uint64_t ramp_tickets = 0;  // the ramp's length in batches; 0: no ramp
  uint32_t ramp_workers = 1;  // workers that the ramp is planned for
};

struct DealerEvent {
  enum class Kind : uint8_t {
    kJoin = 1,      // worker
    kFetch = 2,     // worker, argument: count
    kComplete = 3,  // worker, argument: ticket
    kLost = 4,      // worker: expired or left; its tickets are dealt again
    kStop = 5,      // nothing more is dealt
    kSkipTo = 6,    // worker, argument: the first round it takes part in again
    kViewKnown = 7, // argument: every server knows the views up to this one
    kAnnounce = 8,  // argument: a Phase, to which rounds change as soon as all can know it
  };
  Kind kind;
  uint32_t worker = 0;
  uint64_t argument = 0;
};

// To and from the record format that segments use.
Event ToEvent(const DealerEvent& event);
// INVALID_ARGUMENT when the event is not a dealer's.
absl::StatusOr<DealerEvent> ToDealerEvent(const Event& event);

// Why a fetch brought fewer tickets than asked for.
enum class Withheld : uint8_t {
  kNothing,    // it did not
  kHandsFull,  // max_outstanding
  kBound,      // the staleness bound: slower workers come first
  kRamp,       // the worker ramp: not admitted yet
  kAllDealt,   // every batch is dealt; the last ones are being computed
  kMembers,    // rounds: members are missing before the first one
  kView,       // rounds: not every server knows a new member or phase yet
};

struct Deal {
  std::vector<uint64_t> tickets;
  std::vector<uint64_t> rounds;  // of the tickets, where members may come and go
  Withheld withheld = Withheld::kNothing;
  bool finished = false;  // every batch of every epoch is complete, or stopped
};

// Thread-compatible.
class Dealer {
 public:
  // INVALID_ARGUMENT: no batches or epochs, fewer batches in an epoch than
  // synchronous workers, a bound on synchronous ones.
  static absl::Status Check(const DealerOptions& options);
  // The options must pass Check.
  explicit Dealer(const DealerOptions& options);

  // Any event in any order is safe: completing a ticket that the worker does not
  // hold, or fetching without having joined, changes nothing. Nor does a fetch that
  // brings no ticket.
  Deal Apply(const DealerEvent& event);

  bool finished() const;
  bool stopped() const { return stopped_; }
  uint64_t total_tickets() const { return book_.has_value() ? book_->total() : total_; }
  // Asynchronous: the tickets before this one have been dealt at least once.
  uint64_t next_ticket() const { return next_; }
  uint64_t completed_tickets() const { return book_.has_value() ? book_->completed() : completed_total_; }
  uint64_t redealt_tickets() const { return book_.has_value() ? book_->dealt_again() : redealt_; }
  // Epochs all of whose batches are complete, counted from the first.
  uint32_t completed_epochs() const {
    return book_.has_value() ? book_->completed_epochs() : completed_epochs_;
  }
  uint64_t outstanding(uint32_t worker) const;
  // Tickets in the worker's hands, lowest first.
  std::vector<uint64_t> held(uint32_t worker) const;
  // Batches that the worker is taken to have completed, for the staleness bound; 0
  // for one that has not joined.
  uint64_t clock(uint32_t worker) const;
  // The lowest clock that counts; none where no worker's does.
  std::optional<uint64_t> slowest_clock() const;
  // Whether the ramp lets this worker be dealt to.
  bool admitted(uint32_t worker) const;
  uint64_t joined_workers() const {
    return book_.has_value() ? book_->members().size() : hands_.size();
  }
  uint64_t admitted_workers() const;

  // Null where members do not come and go.
  const RoundBook* rounds() const { return book_.has_value() ? &*book_ : nullptr; }

  std::string Save() const;
  // DATA_LOSS, INVALID_ARGUMENT (other options) or FAILED_PRECONDITION (a format that this program does
  // not read).
  absl::Status Load(std::string_view bytes);

 private:
  struct Hand {
    std::set<uint64_t> tickets;
    uint64_t clock = 0;
    bool admitted = false;
  };

  uint64_t Ticket(uint32_t rank, uint64_t step) const;
  void Finish(uint64_t ticket);
  Deal Fetch(uint32_t worker, uint64_t count);
  Deal ApplyToRounds(const DealerEvent& event);
  // None: `withheld` says why.
  std::optional<uint64_t> Draw(uint32_t worker, const Hand& hand, Withheld* withheld);
  // After joins, losses and deals.
  void UpdateAdmission();

  DealerOptions options_;
  std::optional<RoundBook> book_;  // does all, where there is one
  uint64_t per_epoch_;  // batches dealt an epoch
  uint64_t total_;
  uint64_t next_ = 0;
  std::set<uint64_t> again_;  // lost tickets, lowest first
  std::map<uint32_t, Hand> hands_;               // by worker
  // Synchronous, by rank.
  struct Steps {
    uint64_t next = 0;
    uint64_t dealt = 0;  // ever; a successor makes some of them again
  };
  std::map<uint32_t, Steps> steps_;
  std::vector<uint64_t> completed_;  // by epoch
  uint64_t completed_total_ = 0;
  uint64_t redealt_ = 0;
  uint32_t completed_epochs_ = 0;
  bool stopped_ = false;
};

}  // namespace foreshard
