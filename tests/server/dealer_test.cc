#include "server/dealer.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/core/random.h"

namespace foreshard {
namespace {

using Kind = DealerEvent::Kind;

TEST(Dealer, DealsEveryTicketOnceInOrder) {
  Dealer dealer({.batches_per_epoch = 5, .epochs = 2});
  dealer.Apply({Kind::kJoin, 0});
  std::vector<uint64_t> seen;
  while (!dealer.finished()) {
    const Deal deal = dealer.Apply({Kind::kFetch, 0, 3});
    ASSERT_FALSE(deal.tickets.empty());
    for (const uint64_t ticket : deal.tickets) {
      seen.push_back(ticket);
      dealer.Apply({Kind::kComplete, 0, ticket});
    }
    EXPECT_EQ(dealer.completed_epochs(), seen.size() / 5);
  }
  EXPECT_EQ(seen, (std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_TRUE(dealer.Apply({Kind::kFetch, 0, 1}).finished);
}

TEST(Dealer, LostTicketsAreDealtAgainFirstAndCounted) {
  Dealer dealer({.batches_per_epoch = 4, .epochs = 1});
  dealer.Apply({Kind::kJoin, 0});
  dealer.Apply({Kind::kJoin, 1});
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 0, 2}).tickets, (std::vector<uint64_t>{0, 1}));
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 1, 1}).tickets, (std::vector<uint64_t>{2}));
  dealer.Apply({Kind::kLost, 0});
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 1, 3}).tickets, (std::vector<uint64_t>{0, 1, 3}));
  EXPECT_EQ(dealer.redealt_tickets(), 2u);
  dealer.Apply({Kind::kComplete, 0, 0});  // comes too late: worker 1 has it now
  EXPECT_EQ(dealer.completed_tickets(), 0u);
  for (uint64_t ticket = 0; ticket < 4; ++ticket) {
    EXPECT_FALSE(dealer.finished());
    dealer.Apply({Kind::kComplete, 1, ticket});
  }
  EXPECT_TRUE(dealer.finished());
}

TEST(Dealer, ALateReportCountsWhileItsBatchWaits) {
  Dealer dealer({.batches_per_epoch = 1, .epochs = 1});
  dealer.Apply({Kind::kJoin, 0});
  dealer.Apply({Kind::kFetch, 0, 1});
  dealer.Apply({Kind::kLost, 0});
  dealer.Apply({Kind::kComplete, 0, 0});
  EXPECT_TRUE(dealer.finished());
  EXPECT_EQ(dealer.redealt_tickets(), 0u);
}

TEST(Dealer, ForeignAndRepeatedEventsChangeNothing) {
  Dealer dealer({.batches_per_epoch = 3, .epochs = 1});
  EXPECT_TRUE(dealer.Apply({Kind::kFetch, 7, 1}).tickets.empty());  // never joined
  dealer.Apply({Kind::kJoin, 0});
  dealer.Apply({Kind::kFetch, 0, 1});
  dealer.Apply({Kind::kJoin, 0});  // again: keeps its ticket
  EXPECT_EQ(dealer.outstanding(0), 1u);
  dealer.Apply({Kind::kComplete, 0, 2});  // not dealt yet
  dealer.Apply({Kind::kComplete, 0, 1ull << 60});
  EXPECT_EQ(dealer.completed_tickets(), 0u);
  dealer.Apply({Kind::kComplete, 0, 0});
  dealer.Apply({Kind::kComplete, 0, 0});
  EXPECT_EQ(dealer.completed_tickets(), 1u);
}

TEST(Dealer, OutstandingTicketsAreBounded) {
  Dealer dealer({.batches_per_epoch = 100, .epochs = 1, .max_outstanding = 4});
  dealer.Apply({Kind::kJoin, 0});
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 0, 1000000}).tickets.size(), 4u);
  EXPECT_TRUE(dealer.Apply({Kind::kFetch, 0, 1}).tickets.empty());
}

TEST(Dealer, SynchronousRanksShareEachStepAndDropTheRest) {
  const DealerOptions options = {.batches_per_epoch = 7, .epochs = 2, .synchronous_workers = 3};
  ASSERT_TRUE(Dealer::Check(options).ok());
  Dealer dealer(options);
  for (uint32_t rank = 0; rank < 3; ++rank) dealer.Apply({Kind::kJoin, rank});
  EXPECT_EQ(dealer.total_tickets(), 12u);
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 1, 8}).tickets, (std::vector<uint64_t>{1, 4, 8, 11}));
  dealer.Apply({Kind::kComplete, 1, 1});
  dealer.Apply({Kind::kLost, 1});
  dealer.Apply({Kind::kJoin, 1});  // the rank goes on where it stopped
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 1, 8}).tickets, (std::vector<uint64_t>{4, 8, 11}));
  EXPECT_FALSE(Dealer::Check({.batches_per_epoch = 2, .epochs = 1, .synchronous_workers = 3}).ok());
}

// Workers come, go, are lost and report late in any order: each batch completes
// exactly once, and a saved dealer goes on like the one it was saved from.
TEST(Dealer, RandomLivesCompleteEveryBatchOnceAndSurviveSaving) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const DealerOptions options = {.batches_per_epoch = 17, .epochs = 3};
    Dealer dealer(options);
    std::map<uint32_t, std::vector<uint64_t>> hands;
    for (uint64_t step = 0; !dealer.finished(); ++step) {
      ASSERT_LT(step, 100000u);
      const auto draw = [&](uint64_t stream, uint64_t bound) { return RandomBits(seed, stream, step) % bound; };
      const auto worker = static_cast<uint32_t>(draw(0, 4));
      DealerEvent event{Kind::kJoin, worker, 0};
      switch (draw(1, 8)) {
        case 0:
          event.kind = Kind::kJoin;
          break;
        case 1:
          event.kind = Kind::kLost;
          break;
        case 2:
        case 3:
        case 4:
          event = {Kind::kFetch, worker, draw(2, 4)};
          break;
        default:
          if (hands[worker].empty()) continue;
          event = {Kind::kComplete, worker, hands[worker].back()};
          hands[worker].pop_back();
      }
      Dealer copy(options);
      ASSERT_TRUE(copy.Load(dealer.Save()).ok());
      const Deal deal = dealer.Apply(event);
      EXPECT_EQ(copy.Apply(event).tickets, deal.tickets);
      EXPECT_EQ(copy.Save(), dealer.Save());
      for (const uint64_t ticket : deal.tickets) hands[worker].push_back(ticket);
    }
    EXPECT_EQ(dealer.completed_tickets(), 51u);
    EXPECT_EQ(dealer.completed_epochs(), 3u);
  }
}

TEST(Dealer, NobodyIsMoreThanTheBoundAheadOfTheSlowest) {
  Dealer dealer({.batches_per_epoch = 100, .epochs = 1, .staleness_bound = 2});
  dealer.Apply({Kind::kJoin, 0});
  dealer.Apply({Kind::kJoin, 1});
  // Batches fetched ahead count: 2 ahead of the slowest, and the one under way.
  Deal deal = dealer.Apply({Kind::kFetch, 0, 8});
  EXPECT_EQ(deal.tickets, (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_EQ(deal.withheld, Withheld::kBound);
  for (const uint64_t ticket : {0, 1, 2}) dealer.Apply({Kind::kComplete, 0, ticket});
  EXPECT_EQ(dealer.clock(0), 3u);
  deal = dealer.Apply({Kind::kFetch, 0, 1});
  EXPECT_TRUE(deal.tickets.empty());
  EXPECT_EQ(deal.withheld, Withheld::kBound);
  EXPECT_EQ(dealer.slowest_clock(), 0u);
  // One batch of the slow worker lets the fast one have one.
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 1, 1}).tickets, (std::vector<uint64_t>{3}));
  EXPECT_TRUE(dealer.Apply({Kind::kFetch, 0, 1}).tickets.empty());
  dealer.Apply({Kind::kComplete, 1, 3});
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 0, 8}).tickets, (std::vector<uint64_t>{4}));
  // A worker that is gone holds nobody back.
  dealer.Apply({Kind::kLost, 1});
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 0, 8}).tickets, (std::vector<uint64_t>{5, 6}));
}

TEST(Dealer, WithoutSlackWorkersGoInLockStep) {
  Dealer dealer({.batches_per_epoch = 12, .epochs = 1, .staleness_bound = 0});
  for (uint32_t worker = 0; worker < 3; ++worker) dealer.Apply({Kind::kJoin, worker});
  for (uint64_t round = 0; round < 4; ++round) {
    for (const uint32_t worker : {2, 0, 1}) {
      const Deal deal = dealer.Apply({Kind::kFetch, worker, 4});
      ASSERT_EQ(deal.tickets.size(), 1u);
      EXPECT_EQ(deal.tickets[0] / 3, round);
      EXPECT_TRUE(dealer.Apply({Kind::kFetch, worker, 1}).tickets.empty());
    }
    for (const uint32_t worker : {1, 2, 0}) {
      EXPECT_EQ(dealer.clock(worker), round);
      dealer.Apply({Kind::kComplete, worker, dealer.held(worker)[0]});
      if (worker != 0) {
        EXPECT_TRUE(dealer.Apply({Kind::kFetch, worker, 1}).tickets.empty());
      }
    }
  }
  EXPECT_TRUE(dealer.finished());
}

TEST(Dealer, AJoinerStartsAtTheSlowestClock) {
  Dealer dealer({.batches_per_epoch = 100, .epochs = 1, .staleness_bound = 1});
  dealer.Apply({Kind::kJoin, 0});
  for (uint64_t ticket = 0; ticket < 10; ++ticket) {
    ASSERT_EQ(dealer.Apply({Kind::kFetch, 0, 1}).tickets.size(), 1u);
    dealer.Apply({Kind::kComplete, 0, ticket});
  }
  dealer.Apply({Kind::kJoin, 3});
  EXPECT_EQ(dealer.clock(3), 10u);
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 0, 8}).tickets.size(), 2u);
}

// Worker 1 waits with empty hands when the last fresh batch is dealt: that it is
// behind must not keep a lost batch from worker 0.
TEST(Dealer, WhoHasNothingLeftToDoHoldsNobodyBack) {
  Dealer dealer({.batches_per_epoch = 4, .epochs = 1, .staleness_bound = 0});
  for (uint32_t worker = 0; worker < 3; ++worker) dealer.Apply({Kind::kJoin, worker});
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 0, 1}).tickets, (std::vector<uint64_t>{0}));
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 2, 1}).tickets, (std::vector<uint64_t>{1}));
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 1, 1}).tickets, (std::vector<uint64_t>{2}));
  for (const uint32_t worker : {0, 1, 2}) {
    dealer.Apply({Kind::kComplete, worker, dealer.held(worker)[0]});
  }
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 0, 1}).tickets, (std::vector<uint64_t>{3}));
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 1, 1}).withheld, Withheld::kAllDealt);
  dealer.Apply({Kind::kComplete, 0, 3});
  EXPECT_TRUE(dealer.finished());

  Dealer lost({.batches_per_epoch = 3, .epochs = 1, .staleness_bound = 0});
  for (uint32_t worker = 0; worker < 3; ++worker) lost.Apply({Kind::kJoin, worker});
  lost.Apply({Kind::kFetch, 2, 1});
  lost.Apply({Kind::kFetch, 0, 1});
  lost.Apply({Kind::kComplete, 0, 1});
  EXPECT_EQ(lost.Apply({Kind::kFetch, 0, 1}).withheld, Withheld::kBound);
  lost.Apply({Kind::kLost, 2});
  EXPECT_TRUE(lost.Apply({Kind::kFetch, 0, 1}).tickets.empty());  // ticket 2 is fresh yet
  EXPECT_EQ(lost.Apply({Kind::kFetch, 1, 1}).tickets, (std::vector<uint64_t>{0}));
  lost.Apply({Kind::kComplete, 1, 0});
  EXPECT_EQ(lost.Apply({Kind::kFetch, 1, 1}).tickets, (std::vector<uint64_t>{2}));
  // All is dealt, and worker 0's hands are empty. Worker 1 goes without a word.
  EXPECT_EQ(lost.Apply({Kind::kFetch, 0, 1}).withheld, Withheld::kAllDealt);
  lost.Apply({Kind::kJoin, 2});
  lost.Apply({Kind::kLost, 1});
  EXPECT_EQ(lost.Apply({Kind::kFetch, 0, 1}).tickets, (std::vector<uint64_t>{2}));
}

TEST(Dealer, TheRampAdmitsTheLowestSlotsEvenly) {
  Dealer dealer({.batches_per_epoch = 90, .epochs = 1, .ramp_tickets = 60, .ramp_workers = 4});
  for (const uint32_t worker : {5, 1, 3, 2}) dealer.Apply({Kind::kJoin, worker});
  std::map<uint32_t, uint64_t> admitted_at;  // batches dealt by then
  for (uint64_t dealt = 0; dealt < 90;) {
    for (const uint32_t worker : {5, 3, 2, 1}) {
      if (dealt == 90) break;
      const Deal deal = dealer.Apply({Kind::kFetch, worker, 1});
      if (deal.tickets.empty()) {
        EXPECT_EQ(deal.withheld, Withheld::kRamp);
        EXPECT_EQ(admitted_at.count(worker), 0u);
        continue;
      }
      EXPECT_EQ(admitted_at.count(worker), dealt == 0 ? 0u : 1u);
      ++dealt;
      dealer.Apply({Kind::kComplete, worker, deal.tickets[0]});
      for (const uint32_t other : {1, 2, 3, 5}) {
        if (dealer.admitted(other)) admitted_at.try_emplace(other, dealt);
      }
    }
  }
  EXPECT_EQ(admitted_at, (std::map<uint32_t, uint64_t>{{1, 1}, {2, 20}, {3, 40}, {5, 60}}));
  EXPECT_TRUE(dealer.finished());
}

TEST(Dealer, TheRampGoesOnWithWhoeverIsThere) {
  Dealer dealer({.batches_per_epoch = 100, .epochs = 1, .ramp_tickets = 100, .ramp_workers = 2});
  dealer.Apply({Kind::kJoin, 2});
  dealer.Apply({Kind::kJoin, 4});
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 2, 2}).tickets, (std::vector<uint64_t>{0, 1}));
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 4, 1}).withheld, Withheld::kRamp);
  dealer.Apply({Kind::kLost, 2});
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 4, 3}).tickets, (std::vector<uint64_t>{0, 1, 2}));
  // A lower slot takes over; what slot 4 has in hand still counts.
  dealer.Apply({Kind::kJoin, 0});
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 4, 1}).withheld, Withheld::kRamp);
  dealer.Apply({Kind::kComplete, 4, 2});
  EXPECT_EQ(dealer.completed_tickets(), 1u);
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 0, 1}).tickets, (std::vector<uint64_t>{3}));
}

TEST(Dealer, WhoTheRampKeepsOutHoldsNobodyBackAndStartsAtTheSlowest) {
  Dealer dealer({.batches_per_epoch = 100,
                 .epochs = 1,
                 .staleness_bound = 0,
                 .ramp_tickets = 20,
                 .ramp_workers = 2});
  dealer.Apply({Kind::kJoin, 0});
  dealer.Apply({Kind::kJoin, 1});
  for (uint64_t ticket = 0; ticket < 20; ++ticket) {
    ASSERT_EQ(dealer.Apply({Kind::kFetch, 0, 1}).tickets, (std::vector<uint64_t>{ticket}));
    if (ticket < 19) {
      EXPECT_FALSE(dealer.admitted(1));
    }
    dealer.Apply({Kind::kComplete, 0, ticket});
  }
  EXPECT_EQ(dealer.clock(0), 20u);
  EXPECT_EQ(dealer.clock(1), 19u);  // admitted while worker 0 had one batch in hand
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 0, 1}).withheld, Withheld::kBound);
  EXPECT_EQ(dealer.Apply({Kind::kFetch, 1, 1}).tickets, (std::vector<uint64_t>{20}));
}

// The bounds hold in any order of events, every batch completes once, and the end
// comes whoever stays.
TEST(Dealer, RandomLivesKeepTheBounds) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    DealerOptions options = {.batches_per_epoch = 40, .epochs = 2};
    if (seed % 4 != 0) options.staleness_bound = static_cast<uint32_t>(RandomBits(seed, 7, 0) % 4);
    if (seed % 3 != 0) {
      options.ramp_tickets = 1 + RandomBits(seed, 8, 0) % 80;
      options.ramp_workers = 5;
    }
    Dealer dealer(options);
    ASSERT_TRUE(Dealer::Check(options).ok());
    std::map<uint32_t, std::vector<uint64_t>> hands;  // of joined workers
    std::set<uint64_t> dealt, done;
    uint64_t step = 0;
    const auto draw = [&](uint64_t stream, uint64_t bound) {
      return RandomBits(seed, stream, step) % bound;
    };
    const auto apply = [&](const DealerEvent& event) {
      Dealer copy(options);
      ASSERT_TRUE(copy.Load(dealer.Save()).ok());
      const uint64_t fresh = dealt.size();
      const std::optional<uint64_t> slowest = dealer.slowest_clock();
      const uint64_t clock = dealer.clock(event.worker) + dealer.outstanding(event.worker);
      const bool admitted = dealer.admitted(event.worker);
      const std::string before = dealer.Save();
      const Deal deal = dealer.Apply(event);
      EXPECT_EQ(copy.Apply(event).tickets, deal.tickets);
      EXPECT_EQ(copy.Save(), dealer.Save());
      if (event.kind == Kind::kFetch) {
        EXPECT_EQ(deal.tickets.size() < event.argument, deal.withheld != Withheld::kNothing || dealer.finished());
        if (deal.tickets.empty()) {
          EXPECT_EQ(dealer.Save(), before);
        } else {
          EXPECT_TRUE(admitted);
        }
        if (!deal.tickets.empty() && options.staleness_bound.has_value() && slowest.has_value()) {
          EXPECT_LE(clock + deal.tickets.size(), *slowest + *options.staleness_bound + 1);
        }
      }
      for (const uint64_t ticket : deal.tickets) {
        dealt.insert(ticket);
        hands[event.worker].push_back(ticket);
      }
      // By its own definition.
      uint64_t planned = hands.size();
      if (dealt.size() < options.ramp_tickets) {
        planned = std::min<uint64_t>(planned, 1 + 4 * dealt.size() / options.ramp_tickets);
      }
      ASSERT_EQ(dealer.admitted_workers(), planned);
      for (const auto& [worker, tickets] : hands) {
        ASSERT_EQ(dealer.admitted(worker), planned > 0) << worker;
        if (planned > 0) --planned;
      }
      // Among those admitted nobody is further ahead than the definition allows.
      if (!options.staleness_bound.has_value() || dealt.size() == dealer.total_tickets()) return;
      EXPECT_GE(dealt.size(), fresh);
      for (const auto& [ahead, tickets] : hands) {
        for (const auto& [behind, others] : hands) {
          if (!dealer.admitted(ahead) || !dealer.admitted(behind)) continue;
          ASSERT_LE(dealer.clock(ahead) + tickets.size(),
                    dealer.clock(behind) + *options.staleness_bound + 1);
        }
      }
    };
    const auto complete = [&](uint32_t worker) {
      std::vector<uint64_t>& hand = hands[worker];
      const uint64_t at = draw(3, hand.size());
      const uint64_t ticket = hand[at];
      hand.erase(hand.begin() + static_cast<int64_t>(at));
      EXPECT_TRUE(done.insert(ticket).second) << ticket;
      apply({Kind::kComplete, worker, ticket});
    };
    for (; step < 300 && !dealer.finished(); ++step) {
      const auto worker = static_cast<uint32_t>(draw(0, 5));
      const bool joined = hands.count(worker) > 0;
      const uint64_t what = draw(1, 16);
      if (what == 0 && joined) {
        hands.erase(worker);
        apply({Kind::kLost, worker, 0});
      } else if (what <= 2 && !joined) {
        hands[worker];
        apply({Kind::kJoin, worker, 0});
      } else if (joined && what < 9) {
        apply({Kind::kFetch, worker, 1 + draw(2, 3)});
      } else if (joined && !hands[worker].empty()) {
        complete(worker);
      }
      if (HasFatalFailure()) return;
    }
    // Then nobody comes or goes, and whoever may work does: it comes to an end.
    if (hands.empty()) {
      hands[4];
      apply({Kind::kJoin, 4, 0});
    }
    for (; !dealer.finished(); ++step) {
      ASSERT_LT(step, 100000u) << "seed " << seed;
      const uint64_t before = dealer.completed_tickets();
      std::vector<uint32_t> joined;
      for (const auto& [worker, tickets] : hands) joined.push_back(worker);
      for (const uint32_t worker : joined) {
        apply({Kind::kFetch, worker, 1 + draw(2, 3)});
        if (!hands[worker].empty()) complete(worker);
        if (HasFatalFailure()) return;
      }
      ASSERT_GT(dealer.completed_tickets(), before) << "seed " << seed;
    }
    EXPECT_EQ(done.size(), 80u);
  }
}

using ::testing::ElementsAre;

TEST(Dealer, AStepCountsAsDealtAgainOnceASuccessorTakesIt) {
  const DealerOptions options = {.batches_per_epoch = 6, .epochs = 1, .synchronous_workers = 2};
  Dealer dealer(options);
  dealer.Apply({Kind::kJoin, 1});
  EXPECT_THAT(dealer.Apply({Kind::kFetch, 1, 2}).tickets, ElementsAre(1, 3));
  dealer.Apply({Kind::kComplete, 1, 1});
  dealer.Apply({Kind::kLost, 1});
  // Nobody has taken its place.
  EXPECT_EQ(dealer.redealt_tickets(), 0u);
  dealer.Apply({Kind::kJoin, 1});
  Dealer restored(options);
  ASSERT_TRUE(restored.Load(dealer.Save()).ok());
  EXPECT_THAT(restored.Apply({Kind::kFetch, 1, 2}).tickets, ElementsAre(3, 5));
  EXPECT_EQ(restored.redealt_tickets(), 1u);
}

TEST(Dealer, BoundsOfSynchronousWorkersAreRefused) {
  EXPECT_FALSE(Dealer::Check({.batches_per_epoch = 9, .synchronous_workers = 3, .staleness_bound = 1}).ok());
  EXPECT_FALSE(Dealer::Check({.batches_per_epoch = 9, .synchronous_workers = 3, .ramp_tickets = 1}).ok());
  EXPECT_FALSE(Dealer::Check({.batches_per_epoch = 9, .ramp_tickets = 1, .ramp_workers = 0}).ok());
}

TEST(Dealer, AnAnnouncedPhaseOutlivesARestart) {
  const DealerOptions options = {.batches_per_epoch = 100, .epochs = 1, .synchronous_workers = 2, .views = true};
  Dealer dealer(options);
  for (const uint32_t worker : {0u, 1u}) dealer.Apply({Kind::kJoin, worker});
  ASSERT_EQ(dealer.Apply({Kind::kFetch, 0, 2}).tickets.size(), 2u);
  dealer.Apply({Kind::kAnnounce, 0, static_cast<uint64_t>(Phase::kFrozen)});
  Dealer loaded(options);
  ASSERT_TRUE(loaded.Load(dealer.Save()).ok());
  EXPECT_EQ(loaded.rounds()->announced_round(), 5u);
  EXPECT_EQ(loaded.rounds()->announced_phase(), Phase::kFrozen);
  const Deal deal = loaded.Apply({Kind::kFetch, 0, 8});
  EXPECT_EQ(deal.rounds, (std::vector<uint64_t>{2}));
  EXPECT_EQ(deal.withheld, Withheld::kView);
  EXPECT_EQ(loaded.Apply({Kind::kFetch, 1, 8}).rounds, (std::vector<uint64_t>{0, 1, 2}));
  loaded.Apply({Kind::kViewKnown, 0, 1});
  EXPECT_EQ(loaded.Apply({Kind::kFetch, 0, 1}).rounds, (std::vector<uint64_t>{3}));
  // An asynchronous dealer has no phases.
  Dealer asynchronous({.batches_per_epoch = 3, .epochs = 1});
  const std::string before = asynchronous.Save();
  asynchronous.Apply({Kind::kAnnounce, 0, 1});
  EXPECT_EQ(asynchronous.Save(), before);
}

TEST(Dealer, DamagedOrForeignStateIsRefused) {
  const DealerOptions options = {.batches_per_epoch = 3, .epochs = 1};
  Dealer dealer(options);
  std::string saved = dealer.Save();
  for (size_t cut = 0; cut < saved.size(); cut += 5) {
    EXPECT_TRUE(absl::IsDataLoss(dealer.Load(saved.substr(0, cut))));
  }
  saved[10] ^= 1;
  EXPECT_TRUE(absl::IsDataLoss(dealer.Load(saved)));
  Dealer other({.batches_per_epoch = 4, .epochs = 1});
  EXPECT_TRUE(absl::IsInvalidArgument(other.Load(dealer.Save())));
  Dealer bounded({.batches_per_epoch = 3, .epochs = 1, .staleness_bound = 0});
  EXPECT_TRUE(absl::IsInvalidArgument(bounded.Load(dealer.Save())));
  Dealer ramped({.batches_per_epoch = 3, .epochs = 1, .ramp_tickets = 2});
  EXPECT_TRUE(absl::IsInvalidArgument(ramped.Load(dealer.Save())));
}

TEST(DealerEvent, TravelsAsARecord) {
  for (const Kind kind : {Kind::kJoin, Kind::kFetch, Kind::kComplete, Kind::kLost, Kind::kStop}) {
    std::string bytes;
    AppendRecord(ToEvent({kind, 3, 4}), &bytes);
    ByteSpan piece;
    uint64_t size = 0;
    const auto event =
        ParseRecord(ByteSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), &piece, &size);
    ASSERT_TRUE(event.ok());
    const auto back = ToDealerEvent(*event);
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(back->kind, kind);
    EXPECT_EQ(back->worker, 3u);
    EXPECT_EQ(back->argument, 4u);
  }
  EXPECT_FALSE(ToDealerEvent(Event{}).ok());
  EXPECT_EQ(ToDealerEvent(ToEvent({Kind::kAnnounce, 0, 1}))->kind, Kind::kAnnounce);
  EXPECT_FALSE(ToDealerEvent(ToEvent({Kind::kAnnounce, 0, 2})).ok());  // there is no such phase
}

}  // namespace
}  // namespace foreshard
