#include "server/lead.h"

#include <chrono>
#include <future>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/net/job_spec.h"
#include "gmock/gmock.h"
#include "tests/server/server_harness.h"

namespace foreshard {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

// What a worker says to the lead.
class LeadClient {
 public:
  explicit LeadClient(const TestServers& servers, uint32_t shard = 0)
      : stub_(v1::Lead::NewStub(servers.channels[shard])) {}

  absl::StatusOr<v1::RegisterReply> Register(const v1::RegisterRequest& request) {
    return Call<v1::RegisterReply>(&v1::Lead::Stub::Register, request);
  }
  absl::StatusOr<v1::FetchTicketsReply> Fetch(uint32_t worker, uint64_t incarnation, uint32_t count,
                                              const std::vector<uint64_t>& completed = {}) {
    v1::FetchTicketsRequest request;
    request.set_worker(worker);
    request.set_incarnation(incarnation);
    request.set_count(count);
    request.mutable_completed()->Assign(completed.begin(), completed.end());
    return Call<v1::FetchTicketsReply>(&v1::Lead::Stub::FetchTickets, request);
  }
  absl::StatusOr<v1::FetchTicketsReply> Fetch(const v1::FetchTicketsRequest& request) {
    return Call<v1::FetchTicketsReply>(&v1::Lead::Stub::FetchTickets, request);
  }
  absl::StatusOr<v1::ReportReply> Report(const v1::ReportRequest& request) {
    return Call<v1::ReportReply>(&v1::Lead::Stub::Report, request);
  }
  absl::StatusOr<v1::LeaveReply> Leave(uint32_t worker, uint64_t incarnation,
                                       const std::vector<uint64_t>& completed = {}) {
    v1::LeaveRequest request;
    request.set_worker(worker);
    request.set_incarnation(incarnation);
    request.set_reason("done");
    request.mutable_completed()->Assign(completed.begin(), completed.end());
    return Call<v1::LeaveReply>(&v1::Lead::Stub::Leave, request);
  }

 private:
  template <typename Reply, typename Request>
  absl::StatusOr<Reply> Call(grpc::Status (v1::Lead::Stub::*method)(grpc::ClientContext*,
                                                                   const Request&, Reply*),
                             const Request& request) {
    grpc::ClientContext context;
    Reply reply;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &reply);
    if (!status.ok()) return FromGrpc(status);
    return reply;
  }

  std::unique_ptr<v1::Lead::Stub> stub_;
};

std::vector<uint64_t> Tickets(const v1::FetchTicketsReply& reply) {
  return {reply.tickets().begin(), reply.tickets().end()};
}

TEST(Lead, GivesOutSlotsAndRisingIncarnations) {
  TestServers servers(TestJob());
  LeadClient lead(servers);
  uint64_t last = 0;
  for (uint32_t slot = 0; slot < 4; ++slot) {
    const auto reply = lead.Register(servers.Registration("w"));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->worker(), slot);
    EXPECT_GT(reply->incarnation(), last);
    EXPECT_FLOAT_EQ(reply->lease_seconds(), 15);
    last = reply->incarnation();
  }
  const auto full = lead.Register(servers.Registration("one too many"));
  EXPECT_EQ(full.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(std::string(full.status().message()), HasSubstr("all 4 worker slots are taken"));

  v1::RegisterRequest again = servers.Registration("back");
  again.set_wanted_slot(2);
  const auto replaced = lead.Register(again);
  ASSERT_TRUE(replaced.ok());
  EXPECT_EQ(replaced->worker(), 2);
  EXPECT_GT(replaced->incarnation(), last);
  EXPECT_EQ(lead.Fetch(2, last - 1, 1).status().code(), Code::kAborted);
  EXPECT_TRUE(lead.Fetch(2, replaced->incarnation(), 1).ok());
  again.set_wanted_slot(9);
  EXPECT_EQ(lead.Register(again).status().code(), Code::kInvalidArgument);
}

TEST(Lead, RefusesAnotherJobAtTheDoor) {
  TestServers servers(TestJob());
  v1::RegisterRequest request = servers.Registration("w");
  request.mutable_contract()->set_job(1);
  const auto reply = LeadClient(servers).Register(request);
  EXPECT_EQ(reply.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(reply.status().message()), HasSubstr("another job"));
}

TEST(Lead, OtherShardsSayWhereItIs) {
  TestServers servers(TestJob({"servers.shards=2"}));
  LeadClient other(servers, 1);
  const auto reply = other.Register(servers.Registration("w"));
  EXPECT_EQ(reply.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(reply.status().message()), HasSubstr("the lead is the server of shard 0"));
  EXPECT_EQ(other.Fetch(0, 1, 1).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(other.Leave(0, 1).status().code(), Code::kFailedPrecondition);
  EXPECT_FALSE(servers.Status(1).lead());
}

TEST(Lead, DealsEveryBatchOnceAndThenFinishes) {
  TestServers servers(TestJob({"training.epochs=2"}));  // 100 batches an epoch
  LeadClient lead(servers);
  const uint64_t a = lead.Register(servers.Registration("a"))->incarnation();
  const uint64_t b = lead.Register(servers.Registration("b"))->incarnation();
  EXPECT_EQ(lead.Fetch(0, 1, 1).status().code(), Code::kAborted);
  EXPECT_EQ(lead.Fetch(3, a, 1).status().code(), Code::kFailedPrecondition);
  std::set<uint64_t> seen;
  std::vector<uint64_t> held_a, held_b;
  uint32_t turn = 0;
  for (;;) {
    const bool first = ++turn % 3 != 0;
    std::vector<uint64_t>& held = first ? held_a : held_b;
    const auto reply = lead.Fetch(first ? 0 : 1, first ? a : b, 2, held);
    ASSERT_TRUE(reply.ok()) << reply.status();
    held = Tickets(*reply);
    for (const uint64_t ticket : held) EXPECT_TRUE(seen.insert(ticket).second) << ticket;
    if (reply->state() == v1::FetchTicketsReply::FINISHED) {
      EXPECT_EQ(reply->reason(), "all 2 epochs are complete");
      EXPECT_EQ(reply->completed_epochs(), 2);
      break;
    }
    if (reply->state() == v1::FetchTicketsReply::WAIT) {
      EXPECT_GT(reply->retry_seconds(), 0);
      EXPECT_EQ(seen.size(), 200);
    }
  }
  EXPECT_EQ(seen.size(), 200);
  EXPECT_EQ(*seen.rbegin(), 199);
  v1::StatusReply status = servers.Status();
  EXPECT_TRUE(status.finished());
  EXPECT_EQ(status.completed_tickets(), 200);
  EXPECT_EQ(status.total_tickets(), 200);
  EXPECT_EQ(status.redealt_tickets(), 0);
  EXPECT_THAT(status.waiting_for(), HasSubstr("workers to leave: 0 ('a'), 1 ('b')"));
  EXPECT_TRUE(lead.Leave(0, a).ok());
  EXPECT_TRUE(lead.Leave(1, b).ok());
  EXPECT_TRUE(lead.Leave(1, b).ok());  // said twice
  status = servers.Status();
  EXPECT_EQ(status.waiting_for(), "");
  EXPECT_EQ(status.workers(0).state(), "left");
}

TEST(Lead, TellsWhoIsTooFarAheadWhatItWaitsFor) {
  RecordingSink sink;
  TestServers servers(TestJob({"training.staleness_bound=1"}), TestSchema(), &sink);
  LeadClient lead(servers);
  const uint64_t a = lead.Register(servers.Registration("a"))->incarnation();
  const uint64_t b = lead.Register(servers.Registration("b"))->incarnation();
  EXPECT_EQ(Tickets(*lead.Fetch(0, a, 8)), (std::vector<uint64_t>{0, 1}));
  // It asks for more ahead; that is no reason to call it waiting.
  const size_t records = sink.records().size();
  EXPECT_EQ(lead.Fetch(0, a, 2)->state(), v1::FetchTicketsReply::TRAINING);  // its tickets again
  EXPECT_EQ(servers.Status().workers(0).waiting_for(), "");
  auto reply = lead.Fetch(0, a, 1, {0, 1});
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->state(), v1::FetchTicketsReply::WAIT);
  EXPECT_FLOAT_EQ(reply->retry_seconds(), 0.01f);
  EXPECT_EQ(reply->reason(),
            "a slower worker: with 2 batches behind it and 0 in hand, this one is as far ahead as "
            "training.staleness_bound (1) lets it be; the slowest has 0 batches behind it");
  EXPECT_EQ(servers.Status().workers(0).waiting_for(), reply->reason());
  EXPECT_EQ(servers.Status().workers(1).waiting_for(), "");
  // Asking in vain leaves no record.
  for (int k = 0; k < 5; ++k) EXPECT_TRUE(lead.Fetch(0, a, 1)->tickets().empty());
  EXPECT_EQ(sink.records().size(), records + 2);
  EXPECT_EQ(Tickets(*lead.Fetch(1, b, 1)), (std::vector<uint64_t>{2}));
  ASSERT_TRUE(lead.Fetch(1, b, 0, {2}).ok());
  EXPECT_EQ(Tickets(*lead.Fetch(0, a, 1)), (std::vector<uint64_t>{3}));
  EXPECT_EQ(servers.Status().workers(0).waiting_for(), "");
  ASSERT_TRUE(lead.Leave(1, b).ok());
  EXPECT_EQ(lead.Fetch(0, a, 1, {3})->state(), v1::FetchTicketsReply::TRAINING);
}

TEST(Lead, TellsWhoTheRampKeepsOutWhatItWaitsFor) {
  TestServers servers(TestJob({"training.epochs=1", "schedule.ramp_epochs=0.1"}));  // 10 batches, 2 workers
  LeadClient lead(servers);
  const uint64_t a = lead.Register(servers.Registration("a"))->incarnation();
  const uint64_t b = lead.Register(servers.Registration("b"))->incarnation();
  const auto reply = lead.Fetch(1, b, 1);
  EXPECT_EQ(reply->state(), v1::FetchTicketsReply::WAIT);
  EXPECT_FLOAT_EQ(reply->retry_seconds(), 0.2f);
  EXPECT_EQ(reply->reason(),
            "the worker ramp (schedule.ramp_epochs), which admits 1 of 2 workers so far, those of "
            "the lowest slots");
  std::vector<uint64_t> held;
  for (int k = 0; k < 10; ++k) {
    EXPECT_EQ(lead.Fetch(1, b, 1)->state(), v1::FetchTicketsReply::WAIT);
    held = Tickets(*lead.Fetch(0, a, 1, held));
    ASSERT_EQ(held.size(), 1u);
  }
  EXPECT_EQ(Tickets(*lead.Fetch(1, b, 1)), (std::vector<uint64_t>{10}));
  // Whoever is there goes on, and who has left waits for nothing.
  EXPECT_EQ(servers.Status().workers(1).waiting_for(), "");
}

TEST(Lead, WhatALeaverHeldIsDealtAgain) {
  TestServers servers(TestJob());
  LeadClient lead(servers);
  const uint64_t a = lead.Register(servers.Registration("a"))->incarnation();
  const uint64_t b = lead.Register(servers.Registration("b"))->incarnation();
  ASSERT_EQ(Tickets(*lead.Fetch(0, a, 3)), (std::vector<uint64_t>{0, 1, 2}));
  ASSERT_TRUE(lead.Leave(0, a, {0}).ok());
  EXPECT_EQ(Tickets(*lead.Fetch(1, b, 3)), (std::vector<uint64_t>{1, 2, 3}));
  const v1::StatusReply status = servers.Status();
  EXPECT_EQ(status.redealt_tickets(), 2);
  EXPECT_EQ(status.completed_tickets(), 1);
  EXPECT_EQ(lead.Fetch(0, a, 1).status().code(), Code::kFailedPrecondition);
}

TEST(Lead, ALastHeartbeatGivesTheBatchesBackToo) {
  TestServers servers(TestJob());
  LeadClient lead(servers);
  const uint64_t a = lead.Register(servers.Registration("a"))->incarnation();
  const uint64_t b = lead.Register(servers.Registration("b"))->incarnation();
  ASSERT_EQ(Tickets(*lead.Fetch(0, a, 2)), (std::vector<uint64_t>{0, 1}));
  for (int twice = 0; twice < 2; ++twice) {
    grpc::ClientContext context;
    v1::HeartbeatRequest leaving;
    leaving.set_worker(0);
    leaving.set_incarnation(a);
    leaving.set_leaving(true);
    v1::HeartbeatReply reply;
    ASSERT_TRUE(v1::ParameterServer::NewStub(servers.channels[0])
                    ->Heartbeat(&context, leaving, &reply)
                    .ok());
  }
  EXPECT_EQ(servers.Status().workers(0).state(), "left");
  EXPECT_TRUE(lead.Leave(0, a, {1}).ok());  // what it had finished still counts
  EXPECT_EQ(Tickets(*lead.Fetch(1, b, 2)), (std::vector<uint64_t>{0, 2}));
  EXPECT_EQ(servers.Status().completed_tickets(), 1);
}

TEST(Lead, ASilentWorkersBatchesAreDealtAgainAndItMayReturn) {
  RecordingSink sink;
  TestServers servers(TestJob({"timeouts.lease_seconds=0.2"}), TestSchema(), &sink);
  LeadClient lead(servers);
  const uint64_t a = lead.Register(servers.Registration("a"))->incarnation();
  const uint64_t b = lead.Register(servers.Registration("b"))->incarnation();
  TestWorker worker(servers, 0, a);
  worker.InitialiseAll();
  worker.Read(0);
  ASSERT_EQ(worker.Push(0, 0).header.result(), v1::ReplyHeader::APPLIED);
  ASSERT_EQ(Tickets(*lead.Fetch(0, a, 2)), (std::vector<uint64_t>{0, 1}));
  std::vector<uint64_t> dealt;
  while (servers.Status().workers(0).state() != "expired") {
    ASSERT_TRUE(lead.Fetch(1, b, 0).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  // The state says expired a moment before the batches are back.
  while (dealt != std::vector<uint64_t>{0} && dealt != std::vector<uint64_t>{2}) {
    dealt = Tickets(*lead.Fetch(1, b, 1));
    if (dealt == std::vector<uint64_t>{2}) ADD_FAILURE() << "dealt ahead of the lost ones";
  }
  // It was only slow: its push rejoins with empty momentum, its report counts where
  // the batch was not dealt again.
  EXPECT_EQ(worker.Push(0, 1).header.result(), v1::ReplyHeader::APPLIED);
  EXPECT_EQ(servers.Status().workers(0).state(), "training");
  const auto back = lead.Fetch(0, a, 1, {1});
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(Tickets(*back), (std::vector<uint64_t>{2}));
  EXPECT_EQ(servers.Status().completed_tickets(), 1);
  bool expired = false;
  for (const auto& [number, record] : sink.records()) {
    ByteSpan piece;
    uint64_t size = 0;
    const auto event = ParseRecord(
        ByteSpan(reinterpret_cast<const uint8_t*>(record.data()), record.size()), &piece, &size);
    ASSERT_TRUE(event.ok());
    expired = expired || event->kind == EventKind::kExpire;
  }
  EXPECT_TRUE(expired);
}

TEST(Lead, KeepsFiguresAndEvaluations) {
  TestServers servers(TestJob());
  LeadClient lead(servers);
  const uint64_t a = lead.Register(servers.Registration("a"))->incarnation();
  v1::ReportRequest report;
  report.set_worker(0);
  report.set_incarnation(a);
  report.mutable_figures()->set_steps(12);
  report.mutable_figures()->set_loss(0.5f);
  EXPECT_FALSE(lead.Report(report)->finished());
  report.set_incarnation(a - 1);
  EXPECT_EQ(lead.Report(report).status().code(), Code::kAborted);
  v1::ReportRequest evaluator;
  v1::Evaluation& evaluation = *evaluator.add_evaluations();
  evaluation.set_parameters("master");
  evaluation.set_accuracy(0.9);
  // Without the job's contract anybody could say anything.
  EXPECT_EQ(lead.Report(evaluator).status().code(), Code::kFailedPrecondition);
  *evaluator.mutable_contract() = servers.contract;
  EXPECT_TRUE(lead.Report(evaluator).ok());
  const v1::StatusReply status = servers.Status();
  EXPECT_EQ(status.workers(0).figures().steps(), 12);
  EXPECT_EQ(status.workers(0).device(), "cpu");
  ASSERT_EQ(status.evaluations_size(), 1);
  EXPECT_EQ(status.evaluations(0).accuracy(), 0.9);
}

TEST(Lead, CountsExamplesAndRemembersEarlierStartsOfASlot) {
  TestServers servers(TestJob());
  LeadClient lead(servers);
  const uint64_t a = lead.Register(servers.Registration("a"))->incarnation();
  const auto dealt = lead.Fetch(0, a, 2);
  ASSERT_EQ(dealt->tickets_size(), 2);
  ASSERT_TRUE(lead.Fetch(0, a, 0, {dealt->tickets(0)}).ok());
  ASSERT_TRUE(lead.Fetch(0, a, 0, {dealt->tickets(0)}).ok());  // said twice, counted once
  const uint64_t batch = servers.Status().batch_size();
  EXPECT_EQ(servers.Status().workers(0).examples(), batch);
  v1::RegisterRequest again = servers.Registration("b");
  again.set_wanted_slot(0);
  ASSERT_TRUE(lead.Register(again).ok());
  const v1::StatusReply status = servers.Status();
  EXPECT_EQ(status.workers(0).name(), "b");
  EXPECT_EQ(status.workers(0).examples(), 0u);
  ASSERT_EQ(status.past_workers_size(), 1);
  EXPECT_EQ(status.past_workers(0).name(), "a");
  EXPECT_EQ(status.past_workers(0).examples(), batch);
  EXPECT_EQ(status.past_workers(0).state(), "fenced");
}

// What changes nothing leaves no record: one byte of a message would be many on the disk.
TEST(Lead, OnlyBatchesThatSomebodyHoldsAreCompleted) {
  RecordingSink sink;
  TestServers servers(TestJob(), TestSchema(), &sink);
  LeadClient lead(servers);
  const uint64_t a = lead.Register(servers.Registration("a"))->incarnation();
  const uint64_t b = lead.Register(servers.Registration("b"))->incarnation();
  ASSERT_EQ(Tickets(*lead.Fetch(0, a, 2)), (std::vector<uint64_t>{0, 1}));
  const size_t records = sink.records().size();
  ASSERT_TRUE(lead.Fetch(0, a, 0, std::vector<uint64_t>(20, 5)).ok());
  ASSERT_TRUE(lead.Fetch(1, b, 0, {0, 1, ~uint64_t{0}}).ok());  // another's
  EXPECT_EQ(sink.records().size(), records);
  ASSERT_TRUE(lead.Fetch(0, a, 0, {0, 0, 0}).ok());
  EXPECT_EQ(sink.records().size(), records + 1);
  ASSERT_TRUE(lead.Leave(0, a).ok());
  const size_t left = sink.records().size();
  // What is dealt again may have been done by who was given up.
  ASSERT_TRUE(lead.Fetch(1, b, 0, {1, 1}).ok());
  EXPECT_EQ(sink.records().size(), left + 1);
  EXPECT_EQ(servers.Status().completed_tickets(), 2);
}

TEST(Lead, ListsOfTicketsAreNoLongerThanAnyWorkersCanBe) {
  RecordingSink sink;
  TestServers servers(TestJob(), TestSchema(), &sink);
  LeadClient lead(servers);
  const uint64_t a = lead.Register(servers.Registration("a"))->incarnation();
  const size_t records = sink.records().size();
  const std::vector<uint64_t> many(200'000, 5);
  const absl::Status refused = lead.Fetch(0, a, 1, many).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("completed: 200000 tickets; a worker holds at most 8, and 32 are taken in one message"));
  EXPECT_EQ(lead.Leave(0, a, many).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(servers.Status().workers(0).state(), "training");
  EXPECT_EQ(sink.records().size(), records);
  EXPECT_TRUE(lead.Fetch(0, a, 1, std::vector<uint64_t>(32, 5)).ok());
}

// What the lead is told it keeps, and writes into every checkpoint.
TEST(Lead, TextsAreBoundedAtTheDoor) {
  TestServers servers(TestJob());
  LeadClient lead(servers);
  const auto refused = [](const auto& reply) {
    EXPECT_EQ(reply.status().code(), Code::kInvalidArgument);
    return std::string(reply.status().message());
  };
  EXPECT_EQ(refused(lead.Register(servers.Registration(std::string(900'000, 'n')))),
            "worker_name: 900000 bytes; at most 256 are taken");
  EXPECT_THAT(refused(lead.Register(servers.Registration("a\nworker 0 has left"))),
              HasSubstr("worker_name: byte 1 of 19 is a control character"));
  v1::RegisterRequest registration = servers.Registration("a");
  registration.set_device(std::string(257, 'd'));
  EXPECT_THAT(refused(lead.Register(registration)), HasSubstr("device: 257 bytes"));
  EXPECT_EQ(servers.Status().workers_size(), 0);

  const uint64_t a = lead.Register(servers.Registration("a"))->incarnation();
  v1::ReportRequest report;
  *report.mutable_contract() = servers.contract;
  report.add_evaluations()->set_parameters(std::string(900'000, 'p'));
  EXPECT_THAT(refused(lead.Report(report)), HasSubstr("evaluations.parameters: 900000 bytes; at most 32"));
  report.clear_evaluations();
  for (int k = 0; k < 1000; ++k) report.add_evaluations();
  EXPECT_THAT(refused(lead.Report(report)), HasSubstr("evaluations: 1000 of them"));
  EXPECT_EQ(servers.Status().evaluations_size(), 0);
  v1::FetchTicketsRequest fetch;
  fetch.set_worker(0);
  fetch.set_incarnation(a);
  for (int k = 0; k < 2000; ++k) fetch.add_round_figures();
  EXPECT_THAT(refused(lead.Fetch(fetch)), HasSubstr("round_figures: 2000 of them"));

  grpc::ClientContext context;
  v1::StopRequest stop;
  stop.set_reason(std::string(2000, 'r'));
  v1::StopReply stopped;
  EXPECT_EQ(v1::Admin::NewStub(servers.channels[0])->Stop(&context, stop, &stopped).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_FALSE(servers.Status().finished());
}

TEST(Lead, ARefusalNamesTheFieldThatDiffers) {
  TestServers servers(TestJob());
  LeadClient lead(servers);
  v1::RegisterRequest other = servers.Registration("a");
  v1::JobSpec job = TestJob();
  job.mutable_training()->set_epochs(job.training().epochs() + 1);
  other.mutable_contract()->set_job(JobFingerprint(job));
  other.set_job_text(PrintJobSpec(job));
  EXPECT_THAT(std::string(lead.Register(other).status().message()),
              HasSubstr(absl::StrCat("training.epochs: ", job.training().epochs() - 1,
                                                " here, ", job.training().epochs(), " there")));
  other.set_job_text("no job { at all");
  EXPECT_THAT(std::string(lead.Register(other).status().message()),
              HasSubstr("another job: this server has"));
}

// Once a batch at a new rate is dealt, everybody hears of it who asks, whatever is left
// in their hands.
TEST(Lead, SaysWhichStepOfTheRateIsReached) {
  for (const std::string rule : {"dana_slim", "dana_zero"}) {
    TestServers servers(TestJob({"update.rule=" + rule, "schedule.decay=step",
                                 "schedule.decay_epochs=0.0625,0.125", "schedule.decay_factor=0.1"}));
    LeadClient lead(servers);
    const auto first = lead.Register(servers.Registration("a"));
    const auto second = lead.Register(servers.Registration("b"));
    ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    const auto fetch = [&](const v1::RegisterReply& who, uint32_t count,
                           const std::vector<uint64_t>& completed = {}) {
      const auto reply = lead.Fetch(who.worker(), who.incarnation(), count, completed);
      EXPECT_TRUE(reply.ok()) << reply.status();
      return reply->repair_ticket();
    };
    const bool slim = rule == "dana_slim";
    EXPECT_EQ(fetch(*first, 7), 0u);  // tickets 0..6; the rate falls at 7 and 13
    EXPECT_EQ(fetch(*second, 1), slim ? 7u : 0u);
    EXPECT_EQ(fetch(*first, 0), slim ? 7u : 0u);
    EXPECT_EQ(fetch(*second, 7), slim ? 13u : 0u);
    EXPECT_EQ(fetch(*first, 0, {0, 1, 2, 3, 4}), slim ? 13u : 0u);
  }
}

// A journal that waits for its disk.
class SlowSink final : public EventSink {
 public:
  void Record(const Event& event) override {
    absl::MutexLock lock(&mutex_);
    ++recorded_;
    const auto goes_on = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !slow_; };
    if (event.kind == EventKind::kDealerFetch) mutex_.Await(absl::Condition(&goes_on));
  }
  void SetSlow(bool slow) {
    absl::MutexLock lock(&mutex_);
    slow_ = slow;
    recorded_ = 0;
  }
  void AwaitRecords(int count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return recorded_ >= count; };
    mutex_.Await(absl::Condition(&there));
  }

 private:
  absl::Mutex mutex_;
  bool slow_ ABSL_GUARDED_BY(mutex_) = false;
  int recorded_ ABSL_GUARDED_BY(mutex_) = 0;
};

// While one worker's tickets are being journaled, the lead goes on.
TEST(Lead, NobodyWaitsForWhatIsWrittenOfOthers) {
  SlowSink sink;
  TestServers servers(TestJob(), TestSchema(), &sink);
  LeadClient lead(servers);
  const auto registered = lead.Register(servers.Registration("w"));
  ASSERT_TRUE(registered.ok()) << registered.status();
  sink.SetSlow(true);
  absl::StatusOr<v1::FetchTicketsReply> dealt;
  std::thread one([&] { dealt = lead.Fetch(registered->worker(), registered->incarnation(), 2); });
  sink.AwaitRecords(1);
  std::future<v1::StatusReply> status =
      std::async(std::launch::async, [&] { return servers.servers[0]->status(); });
  EXPECT_EQ(status.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  sink.SetSlow(false);
  one.join();
  ASSERT_TRUE(dealt.ok()) << dealt.status();
  EXPECT_EQ(Tickets(*dealt), (std::vector<uint64_t>{0, 1}));
  EXPECT_EQ(status.get().workers_size(), 1);
}

TEST(Lead, StopEndsTheJobWithItsReason) {
  TestServers servers(TestJob());
  LeadClient lead(servers);
  const uint64_t a = lead.Register(servers.Registration("a"))->incarnation();
  ASSERT_EQ(lead.Fetch(0, a, 1)->state(), v1::FetchTicketsReply::TRAINING);
  grpc::ClientContext context;
  v1::StopRequest stop;
  stop.set_reason("enough");
  v1::StopReply stopped;
  ASSERT_TRUE(v1::Admin::NewStub(servers.channels[0])->Stop(&context, stop, &stopped).ok());
  const auto reply = lead.Fetch(0, a, 1);
  EXPECT_EQ(reply->state(), v1::FetchTicketsReply::FINISHED);
  EXPECT_EQ(reply->reason(), "enough");
  EXPECT_TRUE(lead.Report({})->finished());
  EXPECT_EQ(servers.Status().finish_reason(), "enough");
}

TEST(Lead, AStopBeforeAnybodyCameHolds) {
  TestServers servers(TestJob());
  grpc::ClientContext context;
  v1::StopReply stopped;
  ASSERT_TRUE(v1::Admin::NewStub(servers.channels[0])->Stop(&context, {}, &stopped).ok());
  LeadClient lead(servers);
  const uint64_t a = lead.Register(servers.Registration("a"))->incarnation();
  EXPECT_EQ(lead.Fetch(0, a, 1)->state(), v1::FetchTicketsReply::FINISHED);
}

}  // namespace
}  // namespace foreshard
