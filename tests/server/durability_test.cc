// Servers with a state directory: what a start finds is what the last one had acknowledged,
// whenever that was killed, to the bit.
#include "server/durability.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "server/checkpoint_files.h"
#include "server/job_machines.h"
#include "server/journal_file.h"
#include "server/run_description.h"
#include "tests/server/durability_harness.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;
namespace fs = std::filesystem;

class DurabilityOfRules : public DurabilityTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Rules, DurabilityOfRules,
                         ::testing::Values("asgd", "nag_asgd", "multi_asgd", "dana_zero", "dana_dc", "dana_ga",
                                           "gap_aware", "yellow_fin", "smega2", "ormo_da"),
                         [](const auto& info) { return info.param; });

std::vector<std::string> OverridesOf(const std::string& rule) {
  std::vector<std::string> overrides = {"update.rule=" + rule};
  if (rule == "asgd" || rule == "yellow_fin") overrides.push_back("update.momentum=");
  return overrides;
}

// Killed after every fourth push, with a checkpoint on the way.
TEST_P(DurabilityOfRules, GoesOnFromWhatWasAcknowledgedToTheBit) {
  const v1::JobSpec job = TestJob(OverridesOf(GetParam()));
  auto running = Start(job, Path("state"));
  TestWorker worker(running->servers, 0, 5), other(running->servers, 1, 6);
  ASSERT_TRUE(worker.SayHello().ok());
  ASSERT_TRUE(other.SayHello().ok());
  worker.InitialiseAll();
  for (const SegmentPlan& segment : running->servers.plan.segments()) {
    worker.Read(segment.id);
    other.Read(segment.id);
  }
  for (uint64_t step = 0; step < 24; ++step) {
    TestWorker& pusher = step % 3 == 0 ? other : worker;
    for (const SegmentPlan& segment : running->servers.plan.segments()) {
      const Answer answer = pusher.Push(segment.id, step, step % 2 == 0 || segment.kind == TensorKind::kStatistic
                                                              ? CodecId::kNone
                                                              : CodecId::kOneBit);
      ASSERT_TRUE(answer.status.ok()) << answer.status;
    }
    if (step == 9) {
      const auto written = Checkpoint(*running);
      ASSERT_TRUE(written.ok()) << written.status();
      EXPECT_EQ(written->step(), 9u);
      EXPECT_TRUE(fs::exists(written->path())) << written->path();
    }
    if (step % 4 != 0) continue;
    const std::string copy = KilledNow("state");
    const std::vector<std::string> expected = running->Saved();
    auto again = Start(job, copy);
    EXPECT_EQ(again->Saved() == expected, true) << "step " << step;
    const v1::StatusReply status = again->servers.Status();
    EXPECT_GT(status.server_incarnation(), running->servers.Status().server_incarnation());
    EXPECT_EQ(status.restored().empty(), false);
    if (step > 9) {
      EXPECT_THAT(status.restored(), HasSubstr("checkpoint.0000000001"));
      EXPECT_EQ(status.checkpoint_step(), 9u);
    }
  }
}

TEST_F(DurabilityTest, APushIsAppliedOnceWhateverServerAnswersIt) {
  const v1::JobSpec job = TestJob();
  auto running = Start(job, Path("state"));
  TestWorker worker(running->servers, 0, 5);
  ASSERT_TRUE(worker.SayHello().ok());
  worker.InitialiseAll();
  worker.Read(0);
  const v1::ExchangeHeader header = worker.PushHeader(0, 0);
  const std::string payload = worker.Encode(0, worker.Gradient(0, 0));
  ASSERT_EQ(worker.Send(header, payload).header.result(), v1::ReplyHeader::APPLIED);
  const std::string copy = KilledNow("state");
  auto again = Start(job, copy);
  TestWorker same(again->servers, 0, 5);
  // It is known already: no Hello.
  const Answer answer = same.Send(header, payload);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.header.result(), v1::ReplyHeader::DUPLICATE);
  EXPECT_EQ(answer.header.version(), 1u);
  // And an older start of it stays fenced.
  TestWorker older(again->servers, 0, 4);
  EXPECT_EQ(older.Push(0, 1).status.code(), Code::kAborted);
}

TEST_F(DurabilityTest, TheSameStateHasTheSameIdUnlessSomethingMayBeLost) {
  for (const char* journal : {"buffered", "synced", "off"}) {
    const v1::JobSpec job = TestJob({absl::StrCat("durability.journal=", journal)});
    const bool off = std::string(journal) == "off";
    auto running = Start(job, Path(journal));
    TestWorker worker(running->servers, 0, 5);
    v1::HelloReply first;
    ASSERT_TRUE(running->servers.Say(0, running->servers.Hello(0, 5), &first).ok());
    worker.InitialiseAll();
    EXPECT_EQ(running->servers.Status().journal(), journal);
    ASSERT_TRUE(Checkpoint(*running).ok());
    worker.Read(0);
    ASSERT_TRUE(worker.Push(0, 0).status.ok());
    const std::vector<std::string> expected = running->Saved();
    const auto again = [&](const std::string& folder) {
      auto started = Start(job, folder);
      v1::HelloReply reply;
      EXPECT_TRUE(started->servers.Say(0, started->servers.Hello(0, 5), &reply).ok());
      EXPECT_EQ(reply.missing_segments_size(), 0);
      EXPECT_GT(reply.server_incarnation(), first.server_incarnation());
      EXPECT_EQ(reply.run_id(), first.run_id());
      EXPECT_EQ(started->Saved() == expected, reply.state_id() == first.state_id());
      EXPECT_EQ(started->servers.Status().restored().find("is lost") == std::string::npos,
                reply.state_id() == first.state_id());
      return reply.state_id();
    };
    EXPECT_EQ(again(KilledNow(journal)) == first.state_id(), !off) << journal;
    // The last checkpoint of a polite end has it all.
    running.reset();
    EXPECT_EQ(again(Path(journal)), first.state_id()) << journal;
  }
}

// A worker that registered after the checkpoint is taken back by its number.
TEST_F(DurabilityTest, ALeadThatHasLostWorkersTakesThemBack) {
  const v1::JobSpec job = TestJob({"durability.journal=off"});
  auto running = Start(job, Path("state"));
  TestWorker worker(running->servers, 0, 5);
  ASSERT_TRUE(worker.SayHello().ok());
  worker.InitialiseAll();
  ASSERT_TRUE(Checkpoint(*running).ok());
  v1::RegisterReply slot;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(v1::Lead::NewStub(running->servers.channels[0])
                    ->Register(&context, running->servers.Registration("it"), &slot)
                    .ok());
  }
  const auto fetch = [&](const Running& server, uint64_t incarnation) {
    v1::FetchTicketsRequest request;
    request.set_worker(slot.worker());
    request.set_incarnation(incarnation);
    request.set_count(2);
    grpc::ClientContext context;
    v1::FetchTicketsReply reply;
    const grpc::Status status = v1::Lead::NewStub(server.servers.channels[0])->FetchTickets(&context, request, &reply);
    if (status.ok()) return reply.tickets_size();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    return -1;
  };
  EXPECT_EQ(fetch(*running, slot.incarnation()), 2);
  auto again = Start(job, KilledNow("state"));
  EXPECT_EQ(fetch(*again, slot.incarnation()), 2);
  // Not one that no lead can have let in.
  EXPECT_EQ(fetch(*again, again->servers.Status().server_incarnation() + 1'000'000'000), -1);
}

TEST_F(DurabilityTest, RoundsOfSeveralServersDoNotGoOnFromCheckpointsAlone) {
  const auto begin = [&](const std::string& folder, const std::vector<std::string>& overrides) {
    auto running = Start(SynchronousJob(overrides), folder);
    for (uint32_t slot : {0, 1}) {
      TestWorker worker(running->servers, slot, 5);
      EXPECT_TRUE(worker.SayHello().ok());
      worker.InitialiseAll();
    }
    EXPECT_TRUE(Checkpoint(*running).ok());
    TestWorker worker(running->servers, 0, 5);
    v1::ExchangeHeader push = worker.PushHeader(0, 0);
    push.set_round(0);
    EXPECT_TRUE(worker.Send(push, worker.Encode(0, worker.Gradient(0, 0))).status.ok());
    return running;
  };
  const std::vector<std::string> two = {"durability.journal=off", "servers.shards=2"};
  auto running = begin(Path("two"), two);
  const std::string copy = KilledNow("two");
  const absl::Status refused =
      ShardServer::Start({.job = SynchronousJob(two), .state_directory = copy + "/0"}).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(copy + "/0"), HasSubstr("newest checkpoint"),
                                                    HasSubstr("durability.journal"), HasSubstr("import --from")));
  // Where nothing is lost, and where there is one server only.
  running.reset();
  EXPECT_TRUE(ShardServer::Start({.job = SynchronousJob(two), .state_directory = Path("two") + "/0"}).ok());
  const std::vector<std::string> one = {"durability.journal=off"};
  auto alone = begin(Path("one"), one);
  EXPECT_TRUE(ShardServer::Start({.job = SynchronousJob(one), .state_directory = KilledNow("one")}).ok());
}

// A checkpoint that was written without a journal, and a journal that was begun behind it.
TEST_F(DurabilityTest, WhatComesAfterACheckpointThatStoodAloneIsThereToo) {
  {
    auto running = Start(TestJob({"durability.journal=off"}), Path("state"));
    TestWorker worker(running->servers, 0, 5);
    ASSERT_TRUE(worker.SayHello().ok());
    worker.InitialiseAll();
    worker.Read(0);
    ASSERT_TRUE(worker.Push(0, 0).status.ok());
  }
  auto running = Start(TestJob(), Path("state"));
  TestWorker worker(running->servers, 0, 6);
  ASSERT_TRUE(worker.SayHello().ok());
  worker.Read(0);
  for (uint64_t ticket = 1; ticket < 5; ++ticket) ASSERT_TRUE(worker.Push(0, ticket).status.ok());
  const std::vector<std::string> expected = running->Saved();
  for (int start = 0; start < 2; ++start) {
    auto again = Start(TestJob(), KilledNow("state"));
    EXPECT_EQ(again->Saved() == expected, true);
    EXPECT_EQ(again->servers.Status().segments(0).version(), 5u);
  }
}

// And is kept, as long as that checkpoint is what a start may have to fall back on.
TEST_F(DurabilityTest, TheJournalBehindACheckpointThatStoodAloneStaysWithIt) {
  const auto pushes = [&](const v1::JobSpec& job, uint64_t incarnation, uint64_t first, uint64_t last) {
    auto running = Start(job, Path("state"));
    TestWorker worker(running->servers, 0, incarnation);
    EXPECT_TRUE(worker.SayHello().ok());
    if (first == 0) worker.InitialiseAll();
    worker.Read(0);
    for (uint64_t ticket = first; ticket <= last; ++ticket) EXPECT_TRUE(worker.Push(0, ticket).status.ok());
    return running->Saved();
  };
  pushes(TestJob({"durability.journal=off"}), 5, 0, 1);
  const std::vector<std::string> expected = pushes(TestJob(), 6, 2, 5);
  {
    std::fstream states(Path("state/checkpoint.0000000002/state.bin"), std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(states.seekp(100).put('!').good());
  }
  {
    auto again = Start(TestJob(), KilledNow("state"));
    EXPECT_THAT(again->servers.Status().restored(), HasSubstr("checkpoint.0000000001"));
    EXPECT_EQ(again->Saved() == expected, true);
  }
  // With the last checkpoint that stands alone its journal goes.
  pushes(TestJob(), 7, 6, 6);
  pushes(TestJob(), 8, 7, 7);
  const auto storage = OpenStorageToRead(Path("state")).value();
  EXPECT_FALSE(storage->Size(NameOfJournalFile(1)).ok());
}

TEST_F(DurabilityTest, TheLastCheckpointIsWrittenAtTheEndAndOldOnesGo) {
  const v1::JobSpec job = TestJob();
  for (int start = 0; start < 4; ++start) {
    auto running = Start(job, Path("state"));
    TestWorker worker(running->servers, 0, static_cast<uint64_t>(start) + 1);
    ASSERT_TRUE(worker.SayHello().ok());
    if (start == 0) worker.InitialiseAll();
    worker.Read(0);
    ASSERT_TRUE(worker.Push(0, static_cast<uint64_t>(start)).status.ok());
    EXPECT_TRUE(running->servers.servers[0]->Shutdown().ok());
  }
  const auto storage = OpenStorageToRead(Path("state")).value();
  EXPECT_THAT(Checkpoint::List(*storage).value(),
              ::testing::ElementsAre("checkpoint.0000000003", "checkpoint.0000000004"));
  // Nothing happened: nothing is written.
  Start(job, Path("state"));
  EXPECT_EQ(Checkpoint::List(*storage).value().size(), 2u);
}

// What the lead is told beside its dealer's events: who its workers are, and what rounds came to.
TEST_F(DurabilityTest, TheLeadKnowsItsWorkersAndWhatRoundsCameTo) {
  const v1::JobSpec job = SynchronousJob({"update.rule=apmsqueeze", "update.momentum=", "update.beta2=0.95",
                                          "apmsqueeze.automatic_freeze=true", "schedule.learning_rate=0.01"});
  const auto options = MakePhaseControlOptions(job, BatchesPerEpoch(job, kTestExamples));
  v1::RegisterReply slot;
  const auto measured = [&](const Running& running, uint64_t round, double variance_sum) {
    v1::FetchTicketsRequest request;
    request.set_worker(slot.worker());
    request.set_incarnation(slot.incarnation());
    request.add_round_figures()->set_round(round);
    request.mutable_round_figures(0)->set_variance_sum(variance_sum);
    grpc::ClientContext context;
    v1::FetchTicketsReply reply;
    const grpc::Status status =
        v1::Lead::NewStub(running.servers.channels[0])->FetchTickets(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
  };
  auto running = Start(job, Path("state"));
  {
    grpc::ClientContext context;
    ASSERT_TRUE(v1::Lead::NewStub(running->servers.channels[0])
                    ->Register(&context, running->servers.Registration("it"), &slot)
                    .ok());
  }
  measured(*running, 7, 1.0);
  // Written beside what is acknowledged, soon.
  const auto written = [&] {
    std::ifstream file(Path("state/lead.textproto"));
    return std::string(std::istreambuf_iterator<char>(file), {}).find("variance_sums") != std::string::npos;
  };
  for (int k = 0; k < 4000 && !written(); ++k) absl::SleepFor(absl::Milliseconds(5));
  for (const std::string& folder : {KilledNow("state"), Path("state")}) {
    if (folder == Path("state")) running.reset();  // a polite end
    auto again = Start(job, folder);
    const v1::StatusReply status = again->servers.Status();
    ASSERT_EQ(status.workers_size(), 1);
    EXPECT_EQ(status.workers(0).name(), "it");
    EXPECT_EQ(status.workers(0).device(), "cpu");
    EXPECT_EQ(status.workers(0).incarnation(), slot.incarnation());
    EXPECT_EQ(status.variance_stability(), 0);
    measured(*again, 7 + options->span_rounds, 2.0);
    EXPECT_EQ(again->servers.Status().variance_stability(), 0.5);
  }
}

// As it was asked to: that is no failure of the server.
TEST_F(DurabilityTest, WhoWentOnWithoutAJournalEndsWellWithACheckpoint) {
  const v1::JobSpec job = TestJob({"durability.on_failure=continue"});
  auto running = Start(job, Path("state"));
  TestWorker worker(running->servers, 0, 5);
  ASSERT_TRUE(worker.SayHello().ok());
  worker.InitialiseAll();
  worker.Read(0);
  {
    // The journal is longer already.
    struct rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto handler = signal(SIGXFSZ, SIG_IGN);
    const struct rlimit none = {.rlim_cur = 64, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
    const Answer answer = worker.Push(0, 0);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
  }
  EXPECT_THAT(running->servers.Status().journal(), HasSubstr("failed"));
  ASSERT_TRUE(worker.Push(0, 1).status.ok());
  const std::vector<std::string> expected = running->Saved();
  const absl::Status ended = running->servers.servers[0]->Shutdown();
  EXPECT_TRUE(ended.ok()) << ended;
  running.reset();
  auto again = Start(job, Path("state"));
  EXPECT_EQ(again->Saved() == expected, true);
}

TEST_F(DurabilityTest, RoundsThatWereCompleteAreClosedAfterAStart) {
  const v1::JobSpec job = SynchronousJob();
  auto running = Start(job, Path("state"));
  TestWorker first(running->servers, 0, 5), second(running->servers, 1, 5);
  ASSERT_TRUE(first.SayHello().ok());
  ASSERT_TRUE(second.SayHello().ok());
  first.InitialiseAll(0);
  first.Read(0);
  second.Read(0);
  const auto push = [](TestWorker& worker, uint64_t round) {
    v1::ExchangeHeader header = worker.PushHeader(0, 2 * round + worker.worker());
    header.set_round(round);
    return worker.Send(header, worker.Encode(0, worker.Gradient(0, round)));
  };
  for (uint64_t round = 0; round < 3; ++round) {
    ASSERT_TRUE(push(first, round).status.ok());
    ASSERT_TRUE(push(second, round).status.ok());
  }
  const std::vector<std::string> expected = running->Saved();
  const std::string copy = KilledNow("state");
  // Its last record is that of kRoundClosed: killed just before.
  std::string last;
  for (const auto& entry : fs::directory_iterator(copy)) {
    const std::string name = entry.path().filename();
    if (name.rfind("journal.", 0) == 0) last = std::max(last, entry.path().string());
  }
  fs::resize_file(last, fs::file_size(last) - kEventOverheadBytes);
  auto again = Start(job, copy);
  EXPECT_EQ(again->Saved() == expected, true);
  EXPECT_EQ(again->servers.Status().segments(0).version(), 3u);
}

TEST_F(DurabilityTest, RefusesTheStateOfAnotherJobOrShard) {
  {
    auto running = Start(TestJob(), Path("state"));
    TestWorker worker(running->servers, 0, 5);
    ASSERT_TRUE(worker.SayHello().ok());
  }
  const auto start = [&](const v1::JobSpec& job, uint32_t shard) {
    return ShardServer::Start({.job = job, .shard = shard, .state_directory = Path("state")}).status();
  };
  const absl::Status other = start(TestJob({"schedule.learning_rate=0.5"}), 0);
  EXPECT_EQ(other.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()),
              AllOf(HasSubstr(Path("state")), HasSubstr("schedule.learning_rate: 0.5 here, 0.01 there")));
  // What may change from one start to the next.
  EXPECT_TRUE(start(TestJob({"durability.checkpoint_seconds=7", "timeouts.lease_seconds=3"}), 0).ok());
  const std::string text = [&] {
    std::ifstream file(Path("state/run.textproto"));
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  std::ofstream(Path("state/run.textproto")) << "shard: 1\n" << text;
  EXPECT_THAT(std::string(start(TestJob(), 0).message()), HasSubstr("shard 1, and this server is shard 0"));
  std::ofstream(Path("state/run.textproto")) << "}";
  EXPECT_EQ(start(TestJob(), 0).code(), Code::kDataLoss);
  fs::remove(Path("state/run.textproto"));
  const absl::Status missing = start(TestJob(), 0);
  EXPECT_EQ(missing.code(), Code::kDataLoss);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("run.textproto"));
}

TEST_F(DurabilityTest, WhatIsNoFileWhereOneBelongsIsSaid) {
  {
    auto running = Start(TestJob(), Path("state"));
    TestWorker worker(running->servers, 0, 5);
    ASSERT_TRUE(worker.SayHello().ok());
    worker.InitialiseAll();
  }
  const auto start = [&] { return ShardServer::Start({.job = TestJob(), .state_directory = Path("state")}).status(); };
  const auto pipe_at = [&](const std::string& name) {
    fs::rename(Path("state/" + name), Path("kept"));
    ASSERT_EQ(mkfifo(Path("state/" + name).c_str(), 0600), 0);
    const absl::Status refused = start();
    EXPECT_EQ(refused.code(), Code::kFailedPrecondition) << name << ": " << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(Path("state/" + name)));
    fs::remove(Path("state/" + name));
    fs::rename(Path("kept"), Path("state/" + name));
  };
  pipe_at(NameOfJournalFile(2));
  pipe_at("checkpoint.0000000001");
  pipe_at("checkpoint.0000000001/manifest.json");
  pipe_at("checkpoint.0000000001/state.bin");
  pipe_at("run.textproto");
  fs::rename(Path("state/" + NameOfJournalFile(2)), Path("kept"));
  fs::create_directory(Path("state/" + NameOfJournalFile(2)));
  EXPECT_THAT(std::string(start().message()), HasSubstr("is a folder, and by its name a file of the journal"));
  fs::remove(Path("state/" + NameOfJournalFile(2)));
  fs::rename(Path("kept"), Path("state/" + NameOfJournalFile(2)));
  EXPECT_TRUE(start().ok());
}

TEST_F(DurabilityTest, TwoServersDoNotShareAFolder) {
  auto running = Start(TestJob(), Path("state"));
  const absl::Status second =
      ShardServer::Start({.job = TestJob(), .state_directory = Path("state")}).status();
  EXPECT_EQ(second.code(), Code::kUnavailable);
  EXPECT_THAT(std::string(second.message()), HasSubstr("--state-directory"));
}

TEST_F(DurabilityTest, SaysWhyThereIsNoCheckpoint) {
  auto without = std::make_unique<TestServers>(TestJob());
  grpc::ClientContext context;
  v1::CheckpointReply reply;
  const grpc::Status none = v1::Admin::NewStub(without->channels[0])->Checkpoint(&context, {}, &reply);
  EXPECT_EQ(none.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(none.error_message(), HasSubstr("--state-directory"));
  auto running = Start(TestJob(), Path("state"));
  EXPECT_EQ(Checkpoint(*running).status().code(), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace foreshard
