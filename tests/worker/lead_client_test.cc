#include "worker/lead_client.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/fake_shard.h"
#include "worker/heartbeat.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;

ShardPlan SmallPlan() {
  return ShardPlan::Create(
             Schema::Create({{"w", {16}, TensorKind::kTrainable, false}}).value(), {.shards = 1})
      .value();
}

std::unique_ptr<LeadClient> Registered(const FakeShard& server,
                                       const std::atomic<bool>* stop = nullptr,
                                       double connect_seconds = 20) {
  auto lead = LeadClient::Register({.address = server.address(),
                                    .connect_seconds = connect_seconds,
                                    .stop = stop});
  EXPECT_TRUE(lead.ok()) << lead.status();
  return *std::move(lead);
}

TEST(LeadClient, DealsEveryTicketAndEnds) {
  FakeShard server(SmallPlan(), {.tickets = 200});
  auto lead = Registered(server);
  EXPECT_EQ(lead->worker(), 2u);
  EXPECT_EQ(lead->incarnation(), 1u);
  std::set<uint64_t> seen;
  for (;;) {
    const auto ticket = lead->NextTicket();
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    if (!ticket->has_value()) break;
    EXPECT_TRUE(seen.insert((*ticket)->number).second);
    EXPECT_FALSE((*ticket)->waited);
    lead->Completed((*ticket)->number);
  }
  EXPECT_EQ(seen.size(), 200u);
  EXPECT_EQ(server.completed().size(), 200u);
  EXPECT_EQ(lead->finish_reason(), "all epochs are done");
  lead->Leave("finished");
  lead->Leave("twice");
  EXPECT_EQ(server.leaves(), std::vector<std::string>{"finished"});
}

TEST(LeadClient, HoldsFewTicketsAtATime) {
  FakeShard server(SmallPlan(), {.tickets = 1000});
  auto lead = Registered(server);
  for (int k = 0; k < 100; ++k) {
    const auto ticket = lead->NextTicket();
    ASSERT_TRUE(ticket.ok());
    lead->Completed((*ticket)->number);
  }
  // Eight in hand at most, and what is finished but not yet reported.
  EXPECT_LE(server.most_tickets_out(), 8 + 100);
  FakeShard other(SmallPlan(), {.tickets = 1000});
  auto idle = Registered(other);
  ASSERT_TRUE(idle->NextTicket().ok());
  idle->Leave("done");
  EXPECT_LE(other.most_tickets_out(), 3);
}

TEST(LeadClient, ReportsTheNewestFigures) {
  FakeShard server(SmallPlan(), {.tickets = 10});
  auto lead = Registered(server);
  v1::WorkerFigures figures;
  figures.set_steps(5);
  lead->Report(figures);
  for (int k = 0; k < 500 && server.figures().steps() != 5; ++k) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_EQ(server.figures().steps(), 5u);
}

TEST(LeadClient, TellsOnceWhatRoundsCameTo) {
  FakeShard server(SmallPlan(), {.tickets = 20});
  auto lead = Registered(server);
  for (uint64_t round = 0; round < 20; ++round) {
    const auto ticket = lead->NextTicket();
    ASSERT_TRUE(ticket.ok() && ticket->has_value());
    if (round % 5 == 4) {
      lead->NoteRound({.round = round, .variance_sum = 0.5, .error_ratio = 2, .server_error_ratio = 3});
    }
    lead->Completed((*ticket)->number);
  }
  ASSERT_TRUE(lead->NextTicket().ok());  // finished: the lead knows of all
  const std::vector<v1::RoundFigures> told = server.round_figures();
  ASSERT_EQ(told.size(), 4u);
  for (size_t k = 0; k < 4; ++k) {
    EXPECT_EQ(told[k].round(), 5 * k + 4);
    EXPECT_EQ(told[k].variance_sum(), 0.5);
    EXPECT_EQ(told[k].error_ratio(), 2);
    EXPECT_EQ(told[k].server_error_ratio(), 3);
  }
}

TEST(LeadClient, LeavingReportsWhatIsCompleted) {
  FakeShard server(SmallPlan(), {.tickets = 10});
  auto lead = Registered(server);
  const auto ticket = lead->NextTicket();
  ASSERT_TRUE(ticket.ok());
  lead->Completed((*ticket)->number);
  lead->Leave("interrupted");
  const std::vector<uint64_t> completed = server.completed();
  EXPECT_EQ(std::count(completed.begin(), completed.end(), (*ticket)->number), 1);
  EXPECT_EQ(server.leaves(), std::vector<std::string>{"interrupted"});
}

TEST(LeadClient, NamesTheLeadThatIsMissing) {
  const auto lead = LeadClient::Register({.address = "127.0.0.1:1", .connect_seconds = 0.3});
  EXPECT_EQ(lead.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(lead.status().message()), HasSubstr("server 0 at 127.0.0.1:1"));
}

TEST(LeadClient, GoesOnWithTicketsInHandThenGivesUp) {
  FakeShard server(SmallPlan(), {.tickets = 100});
  auto lead = Registered(server, nullptr, 0.5);
  ASSERT_TRUE(lead->NextTicket().ok());
  server.Stop();
  absl::Status status;
  int more = 0;
  for (; more < 50 && status.ok(); ++more) status = lead->NextTicket().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("server 0 at"));
  lead->Leave("the lead is gone");  // does not insist
}

TEST(LeadClient, CompletesTicketsTogether) {
  FakeShard server(SmallPlan(), {.tickets = 30});
  auto lead = Registered(server);
  std::vector<uint64_t> taken;
  for (int k = 0; k < 20; ++k) taken.push_back(lead->NextTicket()->value().number);
  lead->Completed(taken.back(), absl::MakeConstSpan(taken).subspan(0, 19));
  lead->Leave("interrupted");
  std::vector<uint64_t> completed = server.completed();
  std::sort(completed.begin(), completed.end());
  EXPECT_EQ(completed, taken);
}

TEST(LeadClient, SaysWhenTheLeadHasNothingToDeal) {
  FakeShard server(SmallPlan(), {.tickets = 5});
  auto lead = Registered(server);
  std::vector<uint64_t> taken;
  // Nothing is completed, so the lead cannot end the job.
  while (lead->AwaitTicket()) taken.push_back(lead->NextTicket()->value().number);
  EXPECT_EQ(taken.size(), 5u);
  EXPECT_FALSE(lead->AwaitTicket());
  lead->Completed(taken.back(), absl::MakeConstSpan(taken).subspan(0, 4));
  EXPECT_FALSE(lead->NextTicket()->has_value());
  EXPECT_TRUE(lead->AwaitTicket());  // there is an answer: the end
  FakeShard other(SmallPlan(), {.tickets = 1});
  std::atomic<bool> stop{true};
  auto stopped = Registered(other, &stop);
  while (stopped->AwaitTicket() && stopped->NextTicket().ok()) {
  }
  EXPECT_EQ(stopped->NextTicket().status().code(), absl::StatusCode::kCancelled);
}

TEST(LeadClient, StopsWaitingWhenAsked) {
  FakeShard server(SmallPlan(), {.tickets = 1});
  std::atomic<bool> stop{false};
  auto lead = Registered(server, &stop);
  ASSERT_TRUE(lead->NextTicket()->has_value());
  stop = true;  // nothing more is dealt, and nothing was completed
  EXPECT_EQ(lead->NextTicket().status().code(), absl::StatusCode::kCancelled);
}

// Others wait for this worker, which has nothing to do.
TEST(LeadClient, AWaitForATicketEndsWhereMomentumIsWanted) {
  FakeShard server(SmallPlan(), {.tickets = 1});
  auto lead = Registered(server);
  lead->AwaitTicketOrRepair(0);
  ASSERT_EQ(lead->NextTicket().value()->number, 0u);
  EXPECT_EQ(lead->repair_ticket(), 0u);
  server.set_repair_ticket(10);
  lead->AwaitTicketOrRepair(0);  // no ticket comes any more, nor is the job over
  EXPECT_EQ(lead->repair_ticket(), 10u);
  lead->AwaitTicketOrRepair(0);  // still wanted
  lead->Completed(0);
  lead->AwaitTicketOrRepair(10);  // the job is over
  EXPECT_FALSE(lead->NextTicket().value().has_value());
  EXPECT_EQ(lead->repair_ticket(), 10u);
}

// With its hands full it asks only where it has to hear what others want.
TEST(LeadClient, WatchesForRepairsDuringALongBatch) {
  FakeShard server(SmallPlan(), {.tickets = 1'000'000});
  std::atomic<bool> stop{false};
  auto lead = LeadClient::Register({.address = server.address(), .watch = true, .stop = &stop});
  ASSERT_TRUE(lead.ok()) << lead.status();
  ASSERT_TRUE((*lead)->NextTicket().ok());
  server.set_repair_ticket(10);
  while ((*lead)->repair_ticket() == 0) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ((*lead)->repair_ticket(), 10u);
}

TEST(LeadClient, SaysWhichTicketsWereWaitedFor) {
  FakeShard server(SmallPlan(), {.tickets = 1000, .hold_tickets = true});
  auto lead = Registered(server);
  std::thread release([&] {
    while (server.waits() < 3) absl::SleepFor(absl::Milliseconds(1));
    server.HoldTicketsBack(false);
  });
  auto ticket = lead->NextTicket();
  release.join();
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_TRUE((*ticket)->waited);
  // Those that came with it were not waited for.
  for (int k = 0; k < 5; ++k) {
    lead->Completed((*ticket)->number);
    ticket = lead->NextTicket();
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    EXPECT_FALSE((*ticket)->waited);
  }
}

// A ticket that is held back while an earlier one is under way comes with the reply to
// that one's push, unless it comes after it.
TEST(LeadClient, ATicketThatComesBeforeThePushIsAnsweredWasNotWaitedFor) {
  FakeShard server(SmallPlan(), {.tickets = 1000});
  auto lead = Registered(server);
  const auto first = lead->NextTicket();
  ASSERT_TRUE(first.ok());
  server.HoldTicketsBack(true);
  std::vector<uint64_t> under_way;
  // Uses up what is in hand, until the lead has said no.
  std::thread release([&] {
    while (server.waits() < 2) absl::SleepFor(absl::Milliseconds(1));
    server.HoldTicketsBack(false);
  });
  for (int waits = 0; waits < 2; waits = server.waits()) {
    const auto ticket = lead->NextTicket();
    ASSERT_TRUE(ticket.ok());
    EXPECT_FALSE((*ticket)->waited);
    under_way.push_back((*ticket)->number);
  }
  release.join();
  EXPECT_GE(under_way.size(), 1u);
}

TEST(LeadClient, WhoHasWorkDoesNotAskAgainAndAgain) {
  FakeShard server(SmallPlan(), {.tickets = 2});
  auto lead = Registered(server);
  const auto first = lead->NextTicket(), second = lead->NextTicket();
  ASSERT_TRUE(first.ok() && second.ok());
  while (server.waits() == 0) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_EQ(server.waits(), 1);
  lead->Completed((*first)->number);
  lead->Completed((*second)->number);
  const auto none = lead->NextTicket();
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
}

TEST(LeadClient, IsFenced) {
  FakeShard server(SmallPlan(), {.tickets = 1000});
  auto lead = Registered(server);
  server.Fence();
  absl::Status status;
  for (int k = 0; k < 100 && status.ok(); ++k) {
    const auto ticket = lead->NextTicket();
    status = ticket.status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
}

Heartbeat::Options Beats(const std::vector<std::string>& servers) {
  Heartbeat::Options options = {.addresses = servers, .worker = 2, .incarnation = 1,
                                .lease_seconds = 0.06};
  for (const std::string& server : servers) options.channels.push_back(MakeChannel(server));
  return options;
}

TEST(Heartbeat, HearsThatItIsFenced) {
  FakeShard server(SmallPlan(), {});
  Heartbeat heartbeat(Beats({server.address()}));
  EXPECT_TRUE(heartbeat.status().ok());
  server.Fence();
  for (int k = 0; k < 500 && heartbeat.status().ok(); ++k) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(heartbeat.status().code(), absl::StatusCode::kAborted);
}

TEST(Heartbeat, TakesLeaveOfEveryServerThatAnswers) {
  FakeShard first(SmallPlan(), {}), second(SmallPlan(), {});
  Heartbeat heartbeat(Beats({first.address(), "127.0.0.1:1", second.address()}));
  for (int k = 0; k < 500 && second.beats() == 0; ++k) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_GT(second.beats(), 0);
  heartbeat.End(true);
  heartbeat.End(true);  // once
  EXPECT_EQ(first.last_beats(), 1);
  EXPECT_EQ(second.last_beats(), 1);
  EXPECT_TRUE(heartbeat.status().ok());
}

}  // namespace
}  // namespace foreshard
