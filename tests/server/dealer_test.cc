#include "server/dealer.h"

#include <map>

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
}

}  // namespace
}  // namespace foreshard
