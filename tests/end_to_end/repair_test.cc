// dana_slim at steps of the learning rate, with real servers and clients: what each
// worker is sent is what dana_zero would send it, and nobody waits for ever.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/core/random.h"
#include "foreshard/v1/exchange.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/end_to_end/in_process_job.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// 60 batches an epoch; the rate falls to a tenth at tickets 60 and 90.
v1::JobSpec StepJob(const std::string& rule, std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(),
                   {"update.rule=" + rule, "update.momentum=0.9", "schedule.learning_rate=0.5",
                    "schedule.decay=step", "schedule.decay_epochs=1,1.5",
                    "schedule.decay_factor=0.1", "training.max_workers=8"});
  return SyntheticJob(overrides);
}

// Workers that do what a test says, one after the other: tickets in order, each push
// acknowledged before the next worker moves.
class Fleet {
 public:
  Fleet(const v1::JobSpec& job, int workers) : job_(job), servers_(job) {
    for (int w = 0; w < workers; ++w) Join();
  }

  InProcessWorker& Join() {
    workers_.push_back(std::make_unique<InProcessWorker>(job_, servers_.addresses()));
    const absl::Status status = workers_.back()->Connect();
    EXPECT_TRUE(status.ok()) << status;
    return *workers_.back();
  }

  void Step(size_t w, uint64_t ticket) {
    InProcessWorker& worker = *workers_[w];
    ParameterClient& client = worker.client();
    const auto step = worker.computer().Compute(ticket, client.parameters(), client);
    ASSERT_TRUE(step.ok()) << step.status();
    ASSERT_TRUE(client.Push({.ticket = ticket, .gradient = worker.computer().gradient()}).ok());
    const absl::Status done = client.Finish();
    ASSERT_TRUE(done.ok()) << done;
  }

  // All of `who` bring their momentum at once, and each waits for the others.
  void Repair(uint64_t ticket, const std::vector<size_t>& who) {
    std::vector<std::thread> threads;
    for (const size_t w : who) {
      threads.emplace_back([this, w, ticket] {
        const absl::Status status = workers_[w]->client().Repair(ticket);
        EXPECT_TRUE(status.ok()) << status;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void Repair(uint64_t ticket) {
    std::vector<size_t> all(workers_.size());
    for (size_t w = 0; w < all.size(); ++w) all[w] = w;
    Repair(ticket, all);
  }

  // The clock passes the step, and all read anew: what a repair does for dana_zero.
  void PassStep(uint64_t ticket) {
    ParameterClient& first = workers_[0]->client();
    ASSERT_TRUE(first.Push({.ticket = ticket, .finite = false}).ok());
    ASSERT_TRUE(first.Finish().ok());
    for (auto& worker : workers_) {
      ASSERT_TRUE(worker->client().Pull(Parameters::kAsSent).ok());
    }
  }

  // In the worker's name, momentum of zeros: servers take it that it has been brought.
  void BringNothing(size_t w, uint64_t ticket) {
    InProcessWorker& worker = *workers_[w];
    const auto options = MakeClientOptions(job_, worker.model().schema(), worker.data().examples(),
                                           servers_.addresses());
    ASSERT_TRUE(options.ok());
    for (const SegmentPlan& plan : options->plan.segments()) {
      v1::ExchangeRequest request;
      v1::ExchangeHeader& header = *request.mutable_header();
      header.set_kind(v1::ExchangeHeader::REPAIR);
      *header.mutable_contract() = options->hello.contract();
      header.set_segment(plan.id);
      header.set_worker(worker.lead().worker());
      header.set_incarnation(worker.lead().incarnation());
      header.set_ticket(ticket);
      request.set_payload(std::string(plan.elements * sizeof(float), '\0'));
      header.set_checksum(Checksum(AsBytes(request.payload())));
      const auto stub = v1::ParameterServer::NewStub(worker.client().channel(plan.shard));
      grpc::ClientContext context;
      v1::ExchangeReply reply;
      const grpc::Status status = stub->Exchange(&context, request, &reply);
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
  }

  std::vector<float> Parameters(size_t w) {
    InProcessWorker& worker = *workers_[w];
    const float* values = worker.client().parameters();
    return {values, values + worker.model().schema().elements()};
  }

  InProcessServers& servers() { return servers_; }
  InProcessWorker& operator[](size_t w) { return *workers_[w]; }
  size_t size() const { return workers_.size(); }

 private:
  const v1::JobSpec job_;
  InProcessServers servers_;
  std::vector<std::unique_ptr<InProcessWorker>> workers_;
};

double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t k = 0; k < a.size(); ++k) {
    difference += std::pow(double{a[k]} - b[k], 2);
    size += std::pow(double{a[k]}, 2);
  }
  return std::sqrt(difference / size);
}

enum class AtSteps { kBring, kBringNothing, kPass };

// Up to `tickets`, workers in random order; what each is sent at the end.
std::vector<std::vector<float>> RunFleet(const v1::JobSpec& job, int workers, AtSteps at_steps,
                                    uint64_t tickets = 120) {
  Fleet fleet(job, workers);
  for (uint64_t ticket = 0; ticket < tickets; ++ticket) {
    if (ticket == 60 || ticket == 90) {
      if (at_steps == AtSteps::kPass) {
        fleet.PassStep(ticket);
      } else {
        for (int w = 0; at_steps == AtSteps::kBringNothing && w < workers; ++w) {
          fleet.BringNothing(w, ticket);
        }
        fleet.Repair(ticket);
      }
    }
    fleet.Step(RandomBits(3, workers, ticket) % workers, ticket);
    if (::testing::Test::HasFatalFailure()) return {};
  }
  std::vector<std::vector<float>> sent;
  for (int w = 0; w < workers; ++w) {
    EXPECT_TRUE(fleet[w].client().Pull(Parameters::kAsSent).ok());
    sent.push_back(fleet.Parameters(w));
  }
  for (size_t shard = 0; shard < fleet.servers().size(); ++shard) {
    const v1::StatusReply status = fleet.servers()[shard]->status();
    EXPECT_EQ(status.pushes_rejected(), 0u);
    for (const auto& segment : status.segments()) {
      EXPECT_EQ(segment.version(), tickets);
      EXPECT_EQ(segment.clock(), tickets - 1);
    }
  }
  return sent;
}

// Oracle 2 through two steps, over the wire, on two shards of several segments each.
TEST(Repair, SlimIsSentWhatZeroIsSent) {
  for (const int workers : {1, 4}) {
    const auto zero = RunFleet(StepJob("dana_zero"), workers, AtSteps::kPass);
    const auto slim = RunFleet(StepJob("dana_slim"), workers, AtSteps::kBring);
    ASSERT_EQ(zero.size(), slim.size());
    for (int w = 0; w < workers; ++w) EXPECT_LT(Difference(zero[w], slim[w]), 1e-5) << w;
  }
  const auto zero = RunFleet(StepJob("dana_zero"), 4, AtSteps::kPass, 64);
  const auto without = RunFleet(StepJob("dana_slim"), 4, AtSteps::kBringNothing, 64);
  ASSERT_EQ(zero.size(), without.size());
  for (int w = 0; w < 4; ++w) EXPECT_GT(Difference(zero[w], without[w]), 1e-2) << w;
}

// With a warm-up before it the deviation stays that of the warm-up.
TEST(Repair, AStepAddsNothingToTheWarmUpsDeviation) {
  const std::vector<std::string> warm_up = {"schedule.warmup_epochs=0.5"};
  const auto at = [&](uint64_t tickets, AtSteps at_steps = AtSteps::kBring) {
    const auto zero = RunFleet(StepJob("dana_zero", warm_up), 4, AtSteps::kPass, tickets);
    const auto slim = RunFleet(StepJob("dana_slim", warm_up), 4, at_steps, tickets);
    double worst = 0;
    for (size_t w = 0; w < zero.size() && w < slim.size(); ++w) {
      worst = std::max(worst, Difference(zero[w], slim[w]));
    }
    return worst;
  };
  const double before = at(60);
  EXPECT_LT(at(62), 1.2 * before);
  EXPECT_GT(at(62, AtSteps::kBringNothing), 3 * before);
}

std::string WaitingFor(Fleet& fleet) { return fleet.servers()[0]->status().waiting_for(); }

// Killed when it has brought its momentum: the others need nothing more of it.
TEST(Repair, AWorkerKilledAfterItsShareHoldsNobodyUp) {
  const v1::JobSpec job = StepJob("dana_slim");
  // The same with it alive.
  std::map<bool, std::vector<float>> sent;
  for (const bool killed : {false, true}) {
    Fleet fleet(job, 3);
    for (uint64_t ticket = 0; ticket < 60; ++ticket) fleet.Step(ticket % 3, ticket);
    absl::Status ended;
    std::thread first([&] { ended = fleet[0].client().Repair(60); });
    while (WaitingFor(fleet).empty()) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_THAT(WaitingFor(fleet), AllOf(HasSubstr("momentum of workers 1, 2"), HasSubstr("ticket 60")));
    if (killed) {
      fleet[0].Stop();
      first.join();
      EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled) << ended;
      EXPECT_THAT(std::string(ended.message()), HasSubstr("workers 1, 2"));
      fleet[0].Vanish();
    }
    fleet.Repair(60, {1, 2});
    if (!killed) {
      first.join();
      EXPECT_TRUE(ended.ok()) << ended;
    }
    for (uint64_t ticket = 60; ticket < 70; ++ticket) fleet.Step(1 + ticket % 2, ticket);
    EXPECT_EQ(WaitingFor(fleet), "");
    sent[killed] = fleet.Parameters(2);
  }
  // Shares come in any order, and are added up in it.
  EXPECT_LT(Difference(sent[true], sent[false]), 1e-6);
}

// Killed before: the others wait until its lease is over.
TEST(Repair, AWorkerKilledBeforeItsShareHoldsTheOthersUpForItsLease) {
  Fleet fleet(StepJob("dana_slim", {"timeouts.lease_seconds=0.5"}), 3);
  for (uint64_t ticket = 0; ticket < 60; ++ticket) fleet.Step(ticket % 3, ticket);
  fleet[1].Vanish();
  fleet.Repair(60, {0, 2});
  fleet.Step(0, 60);
  fleet.Step(2, 61);
}

TEST(Repair, WaitingEndsWithWhatIsMissing) {
  Fleet fleet(StepJob("dana_slim", {"timeouts.connect_seconds=0.3"}), 2);
  for (uint64_t ticket = 0; ticket < 4; ++ticket) fleet.Step(ticket % 2, ticket);
  const absl::Status status = fleet[0].client().Repair(75);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("momentum of workers 1"), HasSubstr("step at ticket 60"),
                    HasSubstr("timeouts.connect_seconds")));
}

// A worker whose lease on one of the servers is over when the others pass the step goes
// on with its momentum: brought late, it comes to the same.
TEST(Repair, AWorkerThatComesLateIsAsOneThatWasSlow) {
  const v1::JobSpec job = StepJob("dana_slim", {"timeouts.lease_seconds=0.4"});
  std::map<bool, std::vector<float>> sent;
  for (const bool late : {false, true}) {
    Fleet fleet(job, 3);
    for (uint64_t ticket = 0; ticket < 60; ++ticket) fleet.Step(ticket % 3, ticket);
    if (late) {
      fleet[2].StopHeartbeat();
      // Shard 0 goes on hearing of it by its questions for tickets.
      const auto state = [&] {
        const v1::StatusReply status = fleet.servers()[1]->status();
        for (const auto& worker : status.workers()) {
          if (worker.worker() == fleet[2].lead().worker()) return worker.state();
        }
        return std::string();
      };
      while (state() != "expired") absl::SleepFor(absl::Milliseconds(20));
    }
    std::thread others([&] { fleet.Repair(60, {0, 1}); });
    if (late) {
      const auto passed = [&] {
        const v1::StatusReply status = fleet.servers()[1]->status();
        return std::all_of(status.segments().begin(), status.segments().end(),
                           [](const auto& segment) { return segment.clock() == 60; });
      };
      while (!passed()) absl::SleepFor(absl::Milliseconds(5));
      EXPECT_THAT(WaitingFor(fleet), HasSubstr("momentum of workers 2"));
    }
    fleet.Repair(60, {2});
    others.join();
    // In the late run what the others hold of shard 1 lacks what came after.
    for (size_t w = 0; w < 3; ++w) {
      ASSERT_TRUE(fleet[w].client().Pull(Parameters::kAsSent).ok());
    }
    for (uint64_t ticket = 60; ticket < 75; ++ticket) fleet.Step(ticket % 3, ticket);
    sent[late] = fleet.Parameters(2);
  }
  EXPECT_LT(Difference(sent[false], sent[true]), 1e-6);
}

// One that comes while the others are waiting: it has no momentum yet, and is at once
// as far as they are.
TEST(Repair, AJoinerWaitsWithTheOthers) {
  Fleet fleet(StepJob("dana_slim"), 2);
  for (uint64_t ticket = 0; ticket < 60; ++ticket) fleet.Step(ticket % 2, ticket);
  std::thread waiting([&] { fleet.Repair(60, {0}); });
  while (WaitingFor(fleet).empty()) absl::SleepFor(absl::Milliseconds(5));
  InProcessWorker joiner(StepJob("dana_slim"), fleet.servers().addresses());
  ASSERT_TRUE(joiner.Connect().ok());
  std::thread joining([&] { EXPECT_TRUE(joiner.client().Repair(60).ok()); });
  fleet.Repair(60, {1});
  waiting.join();
  joining.join();
  // Its push at the new rate comes through, and needs nothing at the next step but its own.
  ASSERT_TRUE(joiner.computer().Compute(60, joiner.client().parameters(), joiner.client()).ok());
  ASSERT_TRUE(joiner.client().Push({.ticket = 60, .gradient = joiner.computer().gradient()}).ok());
  ASSERT_TRUE(joiner.client().Finish().ok());
  joiner.Leave();
  fleet.Repair(90);
  fleet.Step(0, 90);
}

// Whole jobs, every worker with its own loop: whoever reaches the step calls the others,
// in a batch or waiting for one.
struct JobCase {
  const char* name;
  int workers;
  std::vector<std::string> overrides;
  bool unequal = false;
};

class RepairedJobs : public ::testing::TestWithParam<JobCase> {};

TEST_P(RepairedJobs, ComeToTheirEnd) {
  const JobCase& c = GetParam();
  const v1::JobSpec job = StepJob("dana_slim", c.overrides);
  InProcessServers servers(job);
  std::vector<std::unique_ptr<InProcessWorker>> workers;
  for (int w = 0; w < c.workers; ++w) {
    workers.push_back(std::make_unique<InProcessWorker>(job, servers.addresses()));
    if (c.unequal && w == 0) {
      workers[0]->after_push = [](const PushFigures&) { absl::SleepFor(absl::Milliseconds(40)); };
    }
  }
  TrainAll(workers);
  for (size_t shard = 0; shard < servers.size(); ++shard) {
    const v1::StatusReply status = servers[shard]->status();
    EXPECT_EQ(status.pushes_rejected(), 0u);
    EXPECT_EQ(status.pushes_duplicate(), 0u);
    for (const auto& segment : status.segments()) {
      EXPECT_EQ(segment.version(), 120u);
      EXPECT_EQ(segment.clock(), 119u);
    }
  }
  EXPECT_TRUE(servers[0]->status().finished());
  EXPECT_EQ(servers[0]->status().completed_tickets(), 120u);
}

INSTANTIATE_TEST_SUITE_P(
    All, RepairedJobs,
    ::testing::Values(JobCase{"alone", 1, {}},
                      JobCase{"many", 6, {}},
                      JobCase{"compressed", 4, {"compression.push=one_bit", "compression.reply=bf16"}},
                      JobCase{"unequal", 4, {}, true},
                      JobCase{"many_steps", 4, {"schedule.decay_epochs=0.1,0.12,0.5,0.55,1,1.9"}},
                      JobCase{"last_ticket", 4, {"schedule.decay_epochs=1.98"}},
                      JobCase{"beyond_the_end", 4, {"schedule.decay_epochs=1.99,3"}},
                      JobCase{"lock_step", 4, {"training.staleness_bound=0"}, true},
                      JobCase{"bounded", 4, {"training.staleness_bound=2"}, true},
                      JobCase{"ramp", 4, {"schedule.ramp_epochs=1.2"}},
                      JobCase{"warm_up", 4, {"schedule.warmup_epochs=1"}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foreshard
