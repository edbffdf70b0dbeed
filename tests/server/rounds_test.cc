// Synchronous rules over the wire: rounds, parked fetches, lost members.
#include <chrono>
#include <thread>

#include "gmock/gmock.h"
#include "server/shard.h"
#include "tests/server/server_harness.h"

namespace foreshard {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

v1::ExchangeHeader RoundHeader(TestWorker& worker, uint64_t round) {
  v1::ExchangeHeader header = worker.PushHeader(0, 2 * round + worker.worker());
  header.set_round(round);
  return header;
}

Answer PushRound(TestWorker& worker, uint64_t round, float value) {
  const std::vector<float> values(worker.Gradient(0, 0).size(), value);
  return worker.Send(RoundHeader(worker, round), worker.Encode(0, values));
}

Answer FetchRound(TestWorker& worker, uint64_t round, double deadline_seconds = 30) {
  v1::ExchangeHeader header = worker.Header(v1::ExchangeHeader::FETCH, 0);
  header.set_round(round);
  return worker.Send(header, "", true, deadline_seconds);
}

class Rounds : public ::testing::Test {
 protected:
  void Begin(const v1::JobSpec& job, EventSink* sink = nullptr) {
    servers = std::make_unique<TestServers>(job, TestSchema(), sink);
    first = std::make_unique<TestWorker>(*servers, 0, 5);
    second = std::make_unique<TestWorker>(*servers, 1, 5);
    ASSERT_TRUE(first->SayHello().ok());
    ASSERT_TRUE(second->SayHello().ok());
    first->InitialiseAll(0);
    first->Read(0);
    second->Read(0);
  }

  size_t Elements() const { return servers->plan.segments()[0].elements; }

  // Until the server says that it waits for this.
  void AwaitWaiting(const std::string& text) {
    for (int i = 0; i < 2000 && servers->Status().waiting_for().find(text) == std::string::npos; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_THAT(servers->Status().waiting_for(), HasSubstr(text));
  }

  static v1::JobSpec FixedJob() {
    return SynchronousJob({"update.rule=easgd", "update.synchronous=true", "update.momentum=",
                           "update.local_steps=1", "timeouts.lease_seconds=0.3"});
  }

  void Leave(uint32_t worker) {
    grpc::ClientContext context;
    v1::HeartbeatRequest leaving;
    leaving.set_worker(worker);
    leaving.set_incarnation(5);
    leaving.set_leaving(true);
    v1::HeartbeatReply reply;
    ASSERT_TRUE(
        v1::ParameterServer::NewStub(servers->channels[0])->Heartbeat(&context, leaving, &reply).ok());
  }

  absl::Status ChangeView(uint64_t number, const std::vector<Member>& members, uint64_t phase_round = 0) {
    v1::View view;
    view.set_phase_round(phase_round);
    *view.mutable_contract() = servers->contract;
    view.set_number(number);
    view.set_worker(0);
    view.set_incarnation(5);
    for (const Member& member : members) {
      v1::ViewMember& listed = *view.add_members();
      listed.set_worker(member.worker);
      listed.set_incarnation(member.incarnation);
      listed.set_first_round(member.first_round);
    }
    grpc::ClientContext context;
    v1::ViewReply reply;
    return FromGrpc(
        v1::ParameterServer::NewStub(servers->channels[0])->ChangeView(&context, view, &reply));
  }

  std::unique_ptr<TestServers> servers;
  std::unique_ptr<TestWorker> first, second;
};

TEST_F(Rounds, CloseWhenEveryMemberHasPushed) {
  RecordingSink sink;
  Begin(SynchronousJob({"update.momentum="}), &sink);
  for (uint64_t round = 0; round < 5; ++round) {
    EXPECT_EQ(PushRound(*first, round, 1).header.result(), v1::ReplyHeader::PENDING);
    AwaitWaiting("pushes of workers 1");
    Answer fetched;
    std::thread waiting([&] { fetched = FetchRound(*first, round); });
    EXPECT_EQ(PushRound(*second, round, 3).header.result(), v1::ReplyHeader::PENDING);
    waiting.join();
    ASSERT_TRUE(fetched.status.ok()) << fetched.status;
    EXPECT_EQ(fetched.header.version(), round + 1);
    ASSERT_EQ(fetched.values.size(), Elements());
    // The mean is 2, momentum is off.
    EXPECT_NEAR(fetched.values[5], -0.01 * 2 * static_cast<double>(round + 1), 1e-6);
    const Answer late = FetchRound(*second, round);  // the round is closed already
    EXPECT_EQ(late.values, fetched.values);
  }
  EXPECT_EQ(servers->Status().pushes_applied(), 10);
  int closed = 0;
  for (const auto& [number, record] : sink.records()) {
    ByteSpan piece;
    uint64_t size = 0;
    closed += ParseRecord(ByteSpan(reinterpret_cast<const uint8_t*>(record.data()), record.size()),
                          &piece, &size)
                  ->kind == EventKind::kRoundClosed;
  }
  EXPECT_EQ(closed, 5);
}

TEST_F(Rounds, ResentPushesCountOnce) {
  Begin(SynchronousJob({"update.momentum="}));
  const v1::ExchangeHeader header = RoundHeader(*first, 0);
  const std::string payload = first->Encode(0, std::vector<float>(Elements(), 1));
  EXPECT_EQ(first->Send(header, payload).header.result(), v1::ReplyHeader::PENDING);
  EXPECT_EQ(first->Send(header, payload).header.result(), v1::ReplyHeader::PENDING);
  PushRound(*second, 0, 3);
  const Answer again = first->Send(header, payload);  // its round is closed
  EXPECT_EQ(again.header.result(), v1::ReplyHeader::DUPLICATE);
  ASSERT_EQ(again.values.size(), Elements());
  EXPECT_NEAR(again.values[0], -0.02, 1e-6);
  EXPECT_EQ(PushRound(*first, 2, 1).status.code(), Code::kFailedPrecondition);  // round 1 is open
  EXPECT_EQ(FetchRound(*first, 2).status.code(), Code::kFailedPrecondition);
}

TEST_F(Rounds, SkippingLeavesAWorkerOutOfTheMean) {
  Begin(SynchronousJob({"update.momentum="}));
  v1::ExchangeHeader skip = RoundHeader(*first, 0);
  skip.set_kind(v1::ExchangeHeader::SKIP);
  EXPECT_EQ(first->Send(skip).header.result(), v1::ReplyHeader::PENDING);
  PushRound(*second, 0, 3);
  const Answer fetched = FetchRound(*first, 0);
  ASSERT_EQ(fetched.values.size(), Elements());
  EXPECT_NEAR(fetched.values[0], -0.03, 1e-6);
  EXPECT_EQ(servers->Status().pushes_skipped(), 1);
}

TEST_F(Rounds, AFetchThatIsGivenUpIsForgotten) {
  Begin(SynchronousJob({"update.momentum="}));
  PushRound(*first, 0, 1);
  EXPECT_EQ(FetchRound(*first, 0, 0.05).status.code(), Code::kDeadlineExceeded);
  PushRound(*second, 0, 3);
  EXPECT_EQ(FetchRound(*first, 0).header.version(), 1);
}

TEST_F(Rounds, TooManyFetchesAreTurnedAway) {
  Begin(SynchronousJob({"update.momentum="}));
  PushRound(*first, 0, 1);
  std::vector<std::thread> threads;
  std::atomic<int> away{0}, answered{0};
  for (int i = 0; i < 20; ++i) {
    threads.emplace_back([&] {
      TestWorker worker(*servers, 0, 5);
      const Answer answer = FetchRound(worker, 0);
      if (answer.status.code() == Code::kResourceExhausted) ++away;
      if (answer.status.ok()) ++answered;
    });
  }
  while (away < 8) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  PushRound(*second, 0, 1);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(away, 8);  // two members: 12 may wait
  EXPECT_EQ(answered, 12);
}

TEST_F(Rounds, ShutdownAnswersThoseWhoWait) {
  Begin(SynchronousJob());
  PushRound(*first, 0, 1);
  Answer fetched;
  std::thread waiting([&] { fetched = FetchRound(*first, 0); });
  AwaitWaiting("pushes of workers 1");
  servers->servers[0]->Shutdown().IgnoreError();
  waiting.join();
  // gRPC itself cancels a call that comes just while the server ends; to workers both
  // say that it is going away.
  EXPECT_THAT(fetched.status.code(), AnyOf(Code::kUnavailable, Code::kCancelled))
      << fetched.status;
}

// Elastic averaging has fixed members.
TEST_F(Rounds, ALostMemberEndsTheJobByName) {
  Begin(FixedJob());
  PushRound(*first, 0, 1);
  // Only the first stays alive.
  Answer fetched;
  do {
    fetched = FetchRound(*first, 0, 0.2);
  } while (fetched.status.code() == Code::kDeadlineExceeded);
  EXPECT_EQ(fetched.status.code(), Code::kInternal) << fetched.status;
  EXPECT_THAT(std::string(fetched.status.message()), HasSubstr("worker 1 ('w1') was lost"));
  const v1::StatusReply status = servers->Status();
  EXPECT_TRUE(status.finished());
  EXPECT_EQ(status.state(), "finished");
  EXPECT_THAT(status.finish_reason(), HasSubstr("worker 1 ('w1') was lost"));
}

TEST_F(Rounds, AFixedMemberThatLeavesEndsTheJobByName) {
  Begin(FixedJob());
  PushRound(*first, 0, 1);
  Leave(1);
  Answer fetched;
  do {
    fetched = FetchRound(*first, 0, 0.2);
  } while (fetched.status.code() == Code::kDeadlineExceeded);
  EXPECT_EQ(fetched.status.code(), Code::kInternal) << fetched.status;
  EXPECT_THAT(std::string(fetched.status.message()), HasSubstr("worker 1 ('w1') has left"));
}

TEST_F(Rounds, GoOnWithoutAMemberThatLeaves) {
  Begin(SynchronousJob({"update.momentum="}));
  PushRound(*first, 0, 1);
  Answer fetched;
  std::thread waiting([&] { fetched = FetchRound(*first, 0); });
  AwaitWaiting("pushes of workers 1");
  Leave(1);
  waiting.join();
  ASSERT_TRUE(fetched.status.ok()) << fetched.status;
  EXPECT_NEAR(fetched.values[0], -0.01, 1e-6);  // the mean is of those that are there
}

TEST_F(Rounds, AViewReleasesThoseWhoWaitForTheDead) {
  Begin(SynchronousJob({"update.momentum="}));
  PushRound(*first, 0, 1);
  Answer fetched;
  std::thread waiting([&] { fetched = FetchRound(*first, 0); });
  AwaitWaiting("pushes of workers 1");
  const absl::Status changed = ChangeView(1, {{.worker = 0, .incarnation = 5}});
  waiting.join();
  EXPECT_TRUE(changed.ok()) << changed;
  ASSERT_TRUE(fetched.status.ok()) << fetched.status;
  EXPECT_EQ(fetched.header.members(), 1);
  EXPECT_EQ(fetched.header.round(), 1);
  EXPECT_TRUE(ChangeView(1, {{.worker = 0, .incarnation = 5}}).ok());  // known already
  // The dead one was only slow: its push comes too late, and is answered with what there is.
  const Answer late = PushRound(*second, 0, 3);
  ASSERT_TRUE(late.status.ok()) << late.status;
  EXPECT_EQ(late.header.result(), v1::ReplyHeader::LATE);
  EXPECT_NEAR(late.values[0], -0.01, 1e-6);
  // And it comes back.
  EXPECT_TRUE(ChangeView(2, {{.worker = 0, .incarnation = 5},
                             {.worker = 1, .incarnation = 5, .first_round = 2}}).ok());
  PushRound(*first, 1, 1);
  EXPECT_EQ(FetchRound(*first, 1).header.members(), 2);
  EXPECT_EQ(PushRound(*second, 2, 1).header.result(), v1::ReplyHeader::PENDING);
}

// Nobody of the open round is left: who waits for its end hears of the next one.
TEST_F(Rounds, AViewReleasesThoseWhoWaitForARoundThatIsGivenUp) {
  Begin(SynchronousJob({"update.momentum="}));
  v1::ExchangeHeader header = second->Header(v1::ExchangeHeader::FETCH, 0);
  header.set_round(2);
  header.set_absent(true);
  Answer answered;
  // Shorter than a server holds a fetch.
  std::thread waiting([&] { answered = second->Send(header, "", true, 10); });
  AwaitWaiting("pushes of workers 0");
  const absl::Status changed = ChangeView(1, {{.worker = 1, .incarnation = 5, .first_round = 3}});
  waiting.join();
  EXPECT_TRUE(changed.ok()) << changed;
  ASSERT_TRUE(answered.status.ok()) << answered.status;
  EXPECT_EQ(answered.header.result(), v1::ReplyHeader::CURRENT);
  EXPECT_EQ(answered.header.round(), 3);
}

TEST_F(Rounds, ViewsThatCannotBeAreRefused) {
  Begin(SynchronousJob());
  EXPECT_THAT(std::string(ChangeView(1, {{.worker = 99}}).message()), HasSubstr("beyond the job's"));
  servers->contract.set_job(servers->contract.job() + 1);
  EXPECT_EQ(ChangeView(1, {}).code(), Code::kFailedPrecondition);
}

TEST_F(Rounds, ViewsAreRefusedWhereMembersAreFixed) {
  Begin(FixedJob());
  EXPECT_THAT(std::string(ChangeView(1, {}).message()), HasSubstr("fixed members"));
}

TEST_F(Rounds, GoOnWithoutAStraggler) {
  Begin(SynchronousJob({"update.momentum=", "training.straggler_seconds=0.2"}));
  PushRound(*first, 0, 1);
  const Answer fetched = FetchRound(*first, 0);
  ASSERT_TRUE(fetched.status.ok()) << fetched.status;
  EXPECT_NEAR(fetched.values[0], -0.01, 1e-6);
  EXPECT_EQ(fetched.header.members(), 2);  // it is a member all the same
  const Answer late = PushRound(*second, 0, 3);
  EXPECT_EQ(late.header.result(), v1::ReplyHeader::LATE);
  EXPECT_EQ(late.header.round(), 1);
  // In the next round it is in time.
  EXPECT_EQ(PushRound(*second, 1, 1).header.result(), v1::ReplyHeader::PENDING);
  PushRound(*first, 1, 3);
  EXPECT_NEAR(FetchRound(*first, 1).values[0], -0.03, 1e-6);
}

// A worker that has fallen behind says so, and nobody waits for it.
TEST_F(Rounds, AFetchCanSayThatItsWorkerIsAbsent) {
  Begin(SynchronousJob({"update.momentum="}));
  v1::ExchangeHeader header = second->Header(v1::ExchangeHeader::FETCH, 0);
  header.set_round(1);
  header.set_absent(true);
  Answer caught_up;
  std::thread waiting([&] { caught_up = second->Send(header, "", true, 30); });
  for (uint64_t round = 0; round < 2; ++round) {
    PushRound(*first, round, 1);
    EXPECT_TRUE(FetchRound(*first, round).status.ok());
  }
  waiting.join();
  ASSERT_TRUE(caught_up.status.ok()) << caught_up.status;
  EXPECT_EQ(caught_up.header.round(), 2);
  EXPECT_NEAR(caught_up.values[0], -0.02, 1e-6);
}

// All have fallen behind, as servers that were stopped make them: each waits for a round that
// nobody else would close.
TEST_F(Rounds, WhereAllAreAbsentTheRoundOfTheFirstToComeBackOpens) {
  Begin(SynchronousJob({"update.momentum="}));
  const auto absent_until = [](TestWorker& worker, uint64_t round) {
    v1::ExchangeHeader header = worker.Header(v1::ExchangeHeader::FETCH, 0);
    header.set_round(round - 1);
    header.set_absent(true);
    return worker.Send(header, "", true, 30);
  };
  Answer caught_up;
  std::thread waiting([&] { caught_up = absent_until(*second, 7); });
  AwaitWaiting("pushes of workers 0");
  const Answer earlier = absent_until(*first, 5);
  ASSERT_TRUE(earlier.status.ok()) << earlier.status;
  EXPECT_EQ(earlier.header.round(), 5);
  EXPECT_EQ(earlier.header.version(), 0);
  // The other is not back yet.
  for (uint64_t round = 5; round < 7; ++round) {
    PushRound(*first, round, 1);
    EXPECT_TRUE(FetchRound(*first, round).status.ok());
  }
  waiting.join();
  ASSERT_TRUE(caught_up.status.ok()) << caught_up.status;
  EXPECT_EQ(caught_up.header.round(), 7);
  EXPECT_EQ(caught_up.header.version(), 2);
}

TEST_F(Rounds, ARoundWhoseMembersHaveGoneWaitsForOthers) {
  Begin(SynchronousJob({"update.momentum="}));
  const absl::Status changed = ChangeView(1, {});
  ASSERT_TRUE(changed.ok()) << changed;
  AwaitWaiting("all that it had have gone");
}

// The close that takes a contribution in may open a round whose members are all absent; it is over at once.
TEST_F(Rounds, ARoundThatOpensWithoutAnybodyIsOver) {
  RecordingSink sink;
  Begin(SynchronousJob({"update.momentum="}), &sink);
  PushRound(*first, 0, 1);
  Leave(0);  // its contribution stays
  v1::ExchangeHeader header = second->Header(v1::ExchangeHeader::FETCH, 0);
  header.set_round(3);
  header.set_absent(true);
  // Shorter than a server holds a fetch.
  const Answer back = second->Send(header, "", true, 10);
  ASSERT_TRUE(back.status.ok()) << back.status;
  EXPECT_EQ(back.header.round(), 4);
  EXPECT_EQ(back.header.version(), 1);
  EXPECT_NEAR(back.values[0], -0.01, 1e-6);
  EXPECT_EQ(PushRound(*second, 4, 1).header.result(), v1::ReplyHeader::PENDING);
  EXPECT_EQ(FetchRound(*second, 4).header.round(), 5);
  // Each close is on record, for replay.
  std::vector<uint64_t> closed;
  for (const auto& [number, record] : sink.records()) {
    ByteSpan piece;
    uint64_t size = 0;
    const auto event =
        ParseRecord(ByteSpan(reinterpret_cast<const uint8_t*>(record.data()), record.size()), &piece, &size);
    ASSERT_TRUE(event.ok());
    if (event->kind == EventKind::kRoundClosed && event->segment == 0) closed.push_back(event->argument);
  }
  EXPECT_THAT(closed, ::testing::ElementsAre(0, 1, 4));
}

// Of rounds that nobody can have been dealt.
TEST_F(Rounds, RoundsFarBeyondTheOpenOneAreRefused) {
  RecordingSink sink;
  Begin(SynchronousJob({"update.momentum="}), &sink);
  const size_t records = sink.records().size();
  v1::ExchangeHeader header = second->Header(v1::ExchangeHeader::FETCH, 0);
  header.set_absent(true);
  for (const uint64_t round : {~uint64_t{0}, uint64_t{1'000'000'000}, Shard::kMostAheadRounds + 1}) {
    header.set_round(round);
    const absl::Status refused = second->Send(header, "", true, 10).status;
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("while round 0 is open, only those up to 1024"));
    const std::vector<Member> members = {{.worker = 0, .incarnation = 5},
                                         {.worker = 1, .incarnation = 5, .first_round = round}};
    EXPECT_EQ(ChangeView(1, members).code(), Code::kInvalidArgument);
    EXPECT_EQ(ChangeView(1, {{.worker = 0, .incarnation = 5}}, round).code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(sink.records().size(), records);
  // A round beyond is opened at once, whatever lies between.
  Leave(0);
  const size_t left = sink.records().size();
  header.set_round(Shard::kMostAheadRounds);
  const Answer back = second->Send(header, "", true, 10);
  ASSERT_TRUE(back.status.ok()) << back.status;
  EXPECT_EQ(back.header.round(), Shard::kMostAheadRounds + 1);
  EXPECT_EQ(sink.records().size(), left + 3);  // absent, closed, and the read of its slot
}

// Who is about to join is not kept out by those that wait already.
TEST_F(Rounds, AWorkerMayWaitHoweverManyOthersDo) {
  Begin(SynchronousJob({"update.momentum="}));
  PushRound(*first, 0, 1);
  std::vector<std::thread> threads;
  std::atomic<int> away{0};
  for (int i = 0; i < 20; ++i) {
    threads.emplace_back([&] {
      TestWorker worker(*servers, 0, 5);
      away += FetchRound(worker, 0).status.code() == Code::kResourceExhausted;
    });
  }
  // As many wait as may without a look at whose calls they are.
  while (away < 8) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(FetchRound(*second, 0, 0.2).status.code(), Code::kDeadlineExceeded);
  PushRound(*second, 0, 1);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(away, 8);
}

// Who has left for good opens nothing.
TEST_F(Rounds, WhereAllHaveLeftTheRoundStays) {
  Begin(SynchronousJob());
  Leave(0);
  Leave(1);
  EXPECT_EQ(servers->Status().round(), 0);
  EXPECT_EQ(servers->Status().round_members(), 2);
}

}  // namespace
}  // namespace foreshard
