#include "server/round_book.h"

#include <map>
#include <set>
#include <vector>

#include "common/core/random.h"
#include "gtest/gtest.h"

namespace foreshard {
namespace {

RoundTicket Dealt(RoundBook& book, uint32_t worker) {
  bool by_view = false;
  const auto ticket = book.Next(worker, &by_view);
  EXPECT_TRUE(ticket.has_value()) << "worker " << worker;
  return ticket.value_or(RoundTicket{});
}

bool Withheld(RoundBook& book, uint32_t worker, bool expect_by_view) {
  bool by_view = false;
  const bool withheld = !book.Next(worker, &by_view).has_value();
  EXPECT_EQ(by_view, expect_by_view);
  return withheld;
}

TEST(RoundBook, FixedMembersShareEachRoundInTheOrderOfTheirSlots) {
  RoundBook book({.batches_per_epoch = 7, .epochs = 2, .workers = 3});
  for (const uint32_t worker : {2u, 0u}) book.Join(worker);
  EXPECT_TRUE(Withheld(book, 0, false));  // one is missing
  book.Join(1);
  EXPECT_EQ(book.total(), 12u);
  const std::vector<uint64_t> tickets = {1, 4, 8, 11};
  for (uint64_t round = 0; round < 4; ++round) {
    const RoundTicket dealt = Dealt(book, 1);
    EXPECT_EQ(dealt.ticket, tickets[round]);
    EXPECT_EQ(dealt.round, round);
    EXPECT_TRUE(book.Complete(1, dealt.ticket));
  }
  EXPECT_TRUE(Withheld(book, 1, false));
  EXPECT_FALSE(book.finished());
  for (const uint32_t worker : {0u, 2u}) {
    for (uint64_t round = 0; round < 4; ++round) book.Complete(worker, Dealt(book, worker).ticket);
  }
  EXPECT_TRUE(book.finished());
  EXPECT_EQ(book.completed(), 12u);
  EXPECT_EQ(book.completed_epochs(), 2u);
  EXPECT_EQ(book.view(), 0u);
}

TEST(RoundBook, AJoinerTakesPartOnceEveryServerKnows) {
  RoundBook book({.batches_per_epoch = 100, .epochs = 1, .workers = 2});
  book.Join(0);
  book.Join(1);
  EXPECT_EQ(Dealt(book, 0).round, 0u);
  EXPECT_EQ(Dealt(book, 0).round, 1u);
  book.Join(5);
  EXPECT_EQ(book.view(), 1u);
  EXPECT_EQ(book.members().at(5).first_round, 3u);
  // A server that had not heard of it could open round 3 once 2 is over.
  EXPECT_TRUE(Withheld(book, 0, true));
  EXPECT_TRUE(Withheld(book, 5, true));
  book.Acknowledge(1);
  EXPECT_EQ(Dealt(book, 0).round, 2u);  // without it
  const RoundTicket first = Dealt(book, 5);
  EXPECT_EQ(first.round, 3u);
  EXPECT_EQ(first.ticket, 8u);  // two a round so far, and the third of this one
  EXPECT_EQ(Dealt(book, 1).ticket, 1u);
  EXPECT_EQ(Dealt(book, 1).ticket, 3u);
}

TEST(RoundBook, APhaseIsAnnouncedAheadOfTwoRounds) {
  RoundBook book({.batches_per_epoch = 100, .epochs = 1, .workers = 2});
  book.Announce(Phase::kFrozen);  // there are no rounds yet
  EXPECT_EQ(book.announced_round(), 0u);
  book.Join(0);
  book.Join(1);
  EXPECT_EQ(Dealt(book, 0).round, 0u);
  EXPECT_EQ(Dealt(book, 0).round, 1u);
  book.Announce(Phase::kFrozen);
  EXPECT_EQ(book.announced_phase(), Phase::kFrozen);
  EXPECT_EQ(book.announced_round(), 5u);
  EXPECT_EQ(book.view(), 1u);
  EXPECT_EQ(Dealt(book, 0).round, 2u);
  // With round 3 drawn up a segment could have round 4 open, which must become a fold.
  EXPECT_TRUE(Withheld(book, 0, true));
  EXPECT_EQ(Dealt(book, 1).round, 0u);
  book.Acknowledge(1);
  EXPECT_EQ(Dealt(book, 0).round, 3u);
  book.Announce(Phase::kFull);
  EXPECT_EQ(book.announced_phase(), Phase::kFull);
  EXPECT_EQ(book.announced_round(), 7u);
  EXPECT_EQ(book.view(), 2u);
}

TEST(RoundBook, ALostWorkersBatchesAreDealtAgain) {
  RoundBook book({.batches_per_epoch = 12, .epochs = 1, .workers = 3});
  for (const uint32_t worker : {0u, 1u, 2u}) book.Join(worker);
  EXPECT_EQ(Dealt(book, 0).ticket, 0u);
  EXPECT_EQ(Dealt(book, 1).ticket, 1u);
  EXPECT_EQ(Dealt(book, 0).ticket, 3u);  // round 1 is drawn up
  book.Lose(1);                          // with 1 in hand, and 4 waiting for it
  EXPECT_EQ(book.view(), 1u);
  EXPECT_EQ(Dealt(book, 2).ticket, 2u);
  EXPECT_EQ(Dealt(book, 2).ticket, 5u);
  EXPECT_EQ(Dealt(book, 2).ticket, 4u);  // round 2: worker 0 has the 1
  EXPECT_EQ(Dealt(book, 0).ticket, 1u);
  EXPECT_EQ(book.dealt_again(), 2u);
  // One that was given up and reports: its batch was dealt again, and does not count twice.
  EXPECT_FALSE(book.Complete(1, 1));
}

TEST(RoundBook, WhoSkipsRoundsGivesItsBatchesBack) {
  RoundBook book({.batches_per_epoch = 20, .epochs = 1, .workers = 2});
  book.Join(0);
  book.Join(1);
  for (int round = 0; round < 5; ++round) book.Complete(0, Dealt(book, 0).ticket);
  EXPECT_EQ(Dealt(book, 1).ticket, 1u);
  book.SkipTo(1, 4);
  const RoundTicket next = Dealt(book, 1);
  EXPECT_EQ(next.round, 4u);
  EXPECT_EQ(next.ticket, 9u);
  // Those of rounds 0 to 3 come first in the rounds that follow.
  EXPECT_EQ(Dealt(book, 0).ticket, 1u);
  EXPECT_EQ(Dealt(book, 1).ticket, 3u);
  book.SkipTo(1, 1000);  // there are no such rounds yet
  EXPECT_EQ(Dealt(book, 1).round, 6u);
}

TEST(RoundBook, AFleetThatHasAllGoneIsFollowedByAnother) {
  RoundBook book({.batches_per_epoch = 10, .epochs = 1, .workers = 2});
  book.Join(0);
  book.Join(1);
  Dealt(book, 0);
  book.Lose(0);
  book.Lose(1);
  book.Join(2);
  EXPECT_TRUE(Withheld(book, 2, true));
  book.Acknowledge(book.view());
  std::set<uint64_t> seen;
  while (!book.finished()) {
    const RoundTicket dealt = Dealt(book, 2);
    EXPECT_TRUE(seen.insert(dealt.ticket).second);
    EXPECT_TRUE(book.Complete(2, dealt.ticket));
  }
  EXPECT_EQ(seen.size(), 10u);
}

TEST(RoundBook, MoreMembersThanBatchesAreNotTaken) {
  RoundBook book({.batches_per_epoch = 2, .epochs = 1, .workers = 2});
  for (const uint32_t worker : {0u, 1u, 2u}) book.Join(worker);
  EXPECT_EQ(book.members().size(), 2u);
}

// Whatever happens in whatever order: no batch completes twice, a round has one batch for each
// of its members, all ends, and a saved book goes on as the one it was made from.
TEST(RoundBook, RandomLivesCompleteEveryBatchOnceOrDropIt) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const RoundBookOptions options = {.batches_per_epoch = 23, .epochs = 3, .workers = 3};
    RoundBook book(options);
    std::map<uint32_t, std::vector<uint64_t>> hands;
    std::set<uint64_t> completed;
    std::map<uint64_t, std::set<uint32_t>> rounds;
    for (uint32_t worker = 0; worker < 3; ++worker) {
      book.Join(worker);
      hands[worker];
    }
    for (uint64_t step = 0; step < 100000 && !book.finished(); ++step) {
      const auto worker = static_cast<uint32_t>(RandomBits(seed, 0, step) % 6);
      const uint64_t choice = RandomBits(seed, 1, step) % 40;
      if (choice == 0) {
        if (hands.size() > 1) {
          book.Lose(worker);
          hands.erase(worker);
        }
      } else if (choice == 1) {
        if (hands.count(worker) == 0) {
          book.Join(worker);
          hands[worker];
        }
      } else if (choice == 2) {
        book.Acknowledge(book.view());
      } else if (choice == 3 && hands.count(worker) > 0) {
        book.SkipTo(worker, RandomBits(seed, 2, step) % (book.next_round() + 3));
        const auto& hand = book.members().at(worker).hand;
        std::erase_if(hands[worker], [&](uint64_t ticket) { return hand.count(ticket) == 0; });
      } else if (choice < 20 && hands.count(worker) > 0) {
        bool by_view = false;
        if (const auto dealt = book.Next(worker, &by_view); dealt.has_value()) {
          EXPECT_TRUE(rounds[dealt->round].insert(worker).second);
          hands[worker].push_back(dealt->ticket);
        }
      } else if (hands.count(worker) > 0 && !hands[worker].empty()) {
        EXPECT_TRUE(book.Complete(worker, hands[worker].back()));
        EXPECT_TRUE(completed.insert(hands[worker].back()).second);
        hands[worker].pop_back();
      }
      if (step % 50 == 7) {
        ByteWriter writer;
        book.Save(&writer);
        const std::string saved = writer.Take();
        RoundBook copy(options);
        ByteReader reader(saved);
        ASSERT_TRUE(copy.Load(&reader));
        EXPECT_EQ(reader.left(), 0u);
        ByteWriter again;
        copy.Save(&again);
        ASSERT_TRUE(again.data() == saved);
        book = copy;
      }
    }
    EXPECT_TRUE(book.finished()) << seed;
    EXPECT_EQ(book.completed(), completed.size());
    EXPECT_GT(completed.size(), 23u * 3 * 2 / 3) << seed;
    EXPECT_EQ(book.completed_epochs(), 3u);
  }
}

}  // namespace
}  // namespace foreshard
