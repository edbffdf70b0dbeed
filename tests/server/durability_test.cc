// Servers with a state directory: what a start finds is what the last one had acknowledged,
// whenever that was killed, to the bit.
#include "server/durability.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/checkpoint_files.h"
#include "server/run_description.h"
#include "tests/server/server_harness.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;
namespace fs = std::filesystem;

class DurabilityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(::testing::TempDir(), "/durability.", getpid(), ".",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  // What a process that is killed now would leave. Its journal has all that was acknowledged.
  std::string KilledNow(const std::string& name) {
    const std::string copy = Path(absl::StrCat("copy", ++copies_));
    fs::copy(Path(name), copy, fs::copy_options::recursive);
    return copy;
  }

  struct Running {
    explicit Running(const v1::JobSpec& job, const std::string& folder) : servers(job, TestSchema(), nullptr, folder) {}
    std::vector<std::string> Saved() const { return servers.servers[0]->SaveSegments(); }
    TestServers servers;
  };
  std::unique_ptr<Running> Start(const v1::JobSpec& job, const std::string& folder) {
    return std::make_unique<Running>(job, folder);
  }

  static absl::StatusOr<v1::CheckpointReply> Checkpoint(const Running& running) {
    grpc::ClientContext context;
    v1::CheckpointReply reply;
    const grpc::Status status =
        v1::Admin::NewStub(running.servers.channels[0])->Checkpoint(&context, {}, &reply);
    if (!status.ok()) return FromGrpc(status);
    return reply;
  }

  std::string folder_;
  int copies_ = 0;
};

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
    const std::string folder = Path(journal);
    v1::HelloReply first, second;
    {
      auto running = Start(job, folder);
      TestWorker worker(running->servers, 0, 5);
      ASSERT_TRUE(running->servers.Say(0, running->servers.Hello(0, 5), &first).ok());
      worker.InitialiseAll();
      EXPECT_EQ(running->servers.Status().journal(), journal);
    }
    // The last checkpoint has it all, but of that nobody can be certain without a journal.
    auto again = Start(job, folder);
    ASSERT_TRUE(again->servers.Say(0, again->servers.Hello(0, 5), &second).ok());
    EXPECT_EQ(second.missing_segments_size(), 0);
    EXPECT_GT(second.server_incarnation(), first.server_incarnation());
    EXPECT_EQ(first.state_id() == second.state_id(), std::string(journal) != "off") << journal;
  }
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

TEST_F(DurabilityTest, TwoServersDoNotShareAFolder) {
  auto running = Start(TestJob(), Path("state"));
  const absl::Status second =
      ShardServer::Start({.job = TestJob(), .state_directory = Path("state")}).status();
  EXPECT_EQ(second.code(), Code::kFailedPrecondition);
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
