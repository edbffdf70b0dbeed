// What a start makes of a state that may lack what was acknowledged: the machine was lost, or the journal
// had failed and nobody could write so.
#include <sys/resource.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "gmock/gmock.h"
#include "server/boot_id.h"
#include "server/durability.h"
#include "server/event.h"
#include "server/run_description.h"
#include "tests/server/durability_harness.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Code = absl::StatusCode;
namespace fs = std::filesystem;

class LostStateTest : public DurabilityTest {
 protected:
  static void Change(const std::string& folder, const std::function<void(v1::RunDescription*)>& change) {
    const auto storage = OpenStorage(folder).value();
    v1::RunDescription description = *ReadRunDescription(*storage).value();
    change(&description);
    ASSERT_TRUE(WriteRunDescription(storage.get(), description).ok());
  }
  static v1::RunDescription DescriptionOf(const std::string& folder) {
    return *ReadRunDescription(*OpenStorageToRead(folder).value()).value();
  }
  static void OnAnotherMachine(const std::string& folder) {
    Change(folder, [](v1::RunDescription* description) {
      if (!description->boot_id().empty()) description->set_boot_id("another");
    });
  }
  // The last event of the newest file of the journal, which has no payload.
  static void DropLastEvent(const std::string& folder, uint64_t bytes) {
    std::string last;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename();
      if (name.rfind("journal.", 0) == 0) last = std::max(last, entry.path().string());
    }
    fs::resize_file(last, fs::file_size(last) - bytes);
  }
  v1::HelloReply Hello(const Running& running, uint32_t shard = 0) {
    v1::HelloReply reply;
    EXPECT_TRUE(running.servers.Say(shard, running.servers.Hello(0, 5), &reply).ok());
    return reply;
  }
  // Servers that two workers have brought first values.
  std::unique_ptr<Running> Initialised(const v1::JobSpec& job, const std::string& folder) {
    auto running = Start(job, folder);
    for (uint32_t slot : {0, 1}) {
      TestWorker worker(running->servers, slot, 5);
      EXPECT_TRUE(worker.SayHello().ok());
      worker.InitialiseAll();
    }
    return running;
  }
  // A server with a push, and a skip as the last event.
  std::unique_ptr<Running> Trained(const v1::JobSpec& job, const std::string& name) {
    auto running = Start(job, Path(name));
    TestWorker worker(running->servers, 0, 5);
    EXPECT_TRUE(worker.SayHello().ok());
    worker.InitialiseAll();
    worker.Read(0);
    EXPECT_TRUE(worker.Push(0, 0).status.ok());
    v1::ExchangeHeader skip = worker.PushHeader(0, 1);
    skip.set_kind(v1::ExchangeHeader::SKIP);
    EXPECT_TRUE(worker.Send(skip).status.ok());
    return running;
  }
  // Makes the journal's next write fail while `fail` runs, as a full disk does: files can be
  // removed, and not be longer.
  static void WithoutRoom(const std::function<void()>& fail) {
    struct rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto handler = signal(SIGXFSZ, SIG_IGN);
    const struct rlimit none = {.rlim_cur = 64, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
    fail();
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
  }
};

TEST(BootId, IsReadAndCompared) {
  EXPECT_EQ(ReadBootId("/nonexistent/boot_id"), "");
  const std::string path = absl::StrCat(::testing::TempDir(), "/boot_id.", getpid());
  std::ofstream(path) << "0123-4567\n";
  EXPECT_EQ(ReadBootId(path), "0123-4567");
  fs::remove(path);
  EXPECT_FALSE(IsAnotherBoot("a", "a"));
  EXPECT_TRUE(IsAnotherBoot("a", "b"));
  EXPECT_FALSE(IsAnotherBoot("", "b")) << "it was not known then: nothing can be said";
  EXPECT_TRUE(IsAnotherBoot("a", "")) << "it cannot be told to be the same";
}

TEST_F(LostStateTest, ALostMachineTakesTheEndOfABufferedJournalAndTheNextStartSaysSo) {
  for (const std::string journal : {"buffered", "synced"}) {
    const v1::JobSpec job = TestJob({"durability.journal=" + journal});
    auto running = Trained(job, journal);
    const v1::HelloReply first = Hello(*running);
    const bool buffered = journal == "buffered";
    EXPECT_EQ(DescriptionOf(Path(journal)).boot_id(), buffered ? ReadBootId() : "");
    const std::string killed = KilledNow(journal), lost = KilledNow(journal);
    DropLastEvent(lost, kEventOverheadBytes);
    OnAnotherMachine(lost);
    {
      auto again = Start(job, killed);
      EXPECT_EQ(Hello(*again).state_id(), first.state_id()) << journal;
    }
    auto again = Start(job, lost);
    const v1::HelloReply reply = Hello(*again);
    EXPECT_EQ(reply.run_id(), first.run_id());
    EXPECT_EQ(reply.state_id() == first.state_id(), !buffered) << journal;
    EXPECT_EQ(again->servers.Status().restored().find("may be lost") != std::string::npos, buffered);
    if (buffered) {
      // It is safe from then on: killed once more on this machine, nothing is lost.
      auto third = Start(job, [&] {
        fs::rename(lost, Path("again"));
        return KilledNow("again");
      }());
      EXPECT_EQ(Hello(*third).state_id(), reply.state_id());
    }
    // A worker that knows more is told what to do, and ends with another status than 2.
    TestWorker worker(again->servers, 0, 5);
    v1::ExchangeHeader ahead = worker.PushHeader(0, 2);
    ahead.set_sequence(3);
    ahead.set_held_version(77);
    const absl::Status refused = worker.Send(ahead, worker.Encode(0, worker.Gradient(0, 2))).status;
    EXPECT_EQ(refused.code(), Code::kOutOfRange);
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("claims version 77"), HasSubstr("start the worker again")));
  }
}

TEST_F(LostStateTest, AServerThatEndedWellMayBeMovedToAnotherMachine) {
  const v1::JobSpec job = TestJob();
  auto running = Trained(job, "state");
  const v1::HelloReply first = Hello(*running);
  running.reset();
  EXPECT_EQ(DescriptionOf(Path("state")).boot_id(), "");
  OnAnotherMachine(Path("state"));
  auto again = Start(job, Path("state"));
  EXPECT_EQ(Hello(*again).state_id(), first.state_id());
  EXPECT_THAT(again->servers.Status().restored(), Not(HasSubstr("lost")));
}

// Whatever becomes of process and machine, as long as nothing is told to it afterwards.
TEST_F(LostStateTest, ACheckpointThatHasEverythingIsAGoodEnd) {
  for (const std::string journal : {"off", "buffered"}) {
    const v1::JobSpec job = TestJob({"durability.journal=" + journal});
    auto running = Trained(job, journal);
    const v1::HelloReply first = Hello(*running);
    ASSERT_TRUE(Checkpoint(*running).ok());
    const std::string rested = KilledNow(journal);
    OnAnotherMachine(rested);
    {
      auto again = Start(job, rested);
      EXPECT_EQ(Hello(*again).state_id(), first.state_id()) << journal;
      EXPECT_THAT(again->servers.Status().restored(), Not(HasSubstr("lost")));
      EXPECT_EQ(again->servers.Status().segments(0).version(), 1u);
    }
    // A start that is told nothing loses nothing.
    const std::string told_nothing = [&] {
      auto again = Start(job, KilledNow(journal));
      fs::rename(Path(absl::StrCat("copy", copies_)), Path("idle" + journal));
      return KilledNow("idle" + journal);
    }();
    OnAnotherMachine(told_nothing);
    EXPECT_EQ(Hello(*Start(job, told_nothing)).state_id(), first.state_id()) << journal;
    // With the next event it is at stake again, before that is acknowledged.
    TestWorker worker(running->servers, 0, 5);
    worker.sequence(0) = 2;
    worker.Read(0);
    ASSERT_TRUE(worker.Push(0, 3).status.ok());
    const std::string killed = KilledNow(journal);
    OnAnotherMachine(killed);
    EXPECT_NE(Hello(*Start(job, killed)).state_id(), first.state_id()) << journal;
  }
}

TEST_F(LostStateTest, RoundsThatRestGoOnWhereverTheyAre) {
  const v1::JobSpec job = SynchronousJob({"servers.shards=2"});
  const auto running = Initialised(job, Path("state"));
  for (uint32_t shard : {0, 1}) ASSERT_TRUE(Checkpoint(*running, shard).ok());
  const std::string copy = KilledNow("state");
  for (uint32_t shard : {0, 1}) {
    const std::string folder = absl::StrCat(copy, "/", shard);
    OnAnotherMachine(folder);
    const auto started = ShardServer::Start({.job = job, .shard = shard, .state_directory = folder});
    EXPECT_TRUE(started.ok()) << started.status();
  }
}

TEST_F(LostStateTest, WhereTheNextEventCannotBeMarkedItIsNotAcknowledged) {
  const v1::JobSpec job = TestJob();
  auto running = Trained(job, "state");
  ASSERT_TRUE(Checkpoint(*running).ok());
  TestWorker worker(running->servers, 0, 5);
  fs::remove(Path("state/run.textproto"));
  fs::create_directory(Path("state/run.textproto"));  // in whose place no file can be put
  EXPECT_EQ(worker.Read(0).status.code(), Code::kUnavailable);
  EXPECT_EQ(worker.Read(0).status.code(), Code::kUnavailable);
}

TEST_F(LostStateTest, ALossIsKnownUntilACheckpointHasBeenWritten) {
  const v1::JobSpec job = TestJob();
  auto running = Trained(job, "state");
  v1::RegisterReply slot;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(v1::Lead::NewStub(running->servers.channels[0])
                    ->Register(&context, running->servers.Registration("it"), &slot)
                    .ok());
  }
  const auto fetch = [&](const Running& server) {
    v1::FetchTicketsRequest request;
    request.set_worker(slot.worker());
    request.set_incarnation(slot.incarnation());
    request.set_count(1);
    grpc::ClientContext context;
    v1::FetchTicketsReply reply;
    return v1::Lead::NewStub(server.servers.channels[0])->FetchTickets(&context, request, &reply).ok();
  };
  // What has registered the worker is lost.
  const std::string lost = KilledNow("state");
  DropLastEvent(lost, kEventOverheadBytes);
  OnAnotherMachine(lost);
  fs::rename(lost, Path("first"));
  uint64_t state_id = 0;
  std::string second;
  {
    auto again = Start(job, Path("first"));
    state_id = Hello(*again).state_id();
    EXPECT_TRUE(DescriptionOf(Path("first")).after_loss());
    second = KilledNow("first");
  }
  fs::rename(second, Path("second"));
  {
    auto again = Start(job, Path("second"));
    EXPECT_EQ(Hello(*again).state_id(), state_id) << "lost once";
    EXPECT_TRUE(fetch(*again));
    ASSERT_TRUE(Checkpoint(*again).ok());
    EXPECT_FALSE(DescriptionOf(Path("second")).after_loss());
  }
}

TEST_F(LostStateTest, StateOfAProgramThatKnewNoBootIsTakenAsItWas) {
  const v1::JobSpec job = TestJob();
  auto running = Trained(job, "state");
  const std::string copy = KilledNow("state");
  Change(copy, [](v1::RunDescription* description) {
    description->clear_boot_id();
    description->clear_common_run_id();
  });
  auto again = Start(job, copy);
  EXPECT_EQ(Hello(*again).state_id(), Hello(*running).state_id());
  // And what its text has no checksum for.
  const std::string older = KilledNow("state");
  {
    std::ifstream file(older + "/run.textproto");
    std::string text(std::istreambuf_iterator<char>(file), {});
    ASSERT_EQ(text.substr(0, 8), "# xxh3: ");
    std::ofstream(older + "/run.textproto") << text.substr(text.find('\n') + 1);
  }
  EXPECT_EQ(Hello(*Start(job, older)).state_id(), Hello(*running).state_id());
}

TEST_F(LostStateTest, RoundsOfSeveralServersDoNotGoOnWhereAMachineWasLost) {
  const v1::JobSpec job = SynchronousJob({"servers.shards=2"});
  const auto running = Initialised(job, Path("state"));
  const std::string copy = KilledNow("state");
  EXPECT_TRUE(ShardServer::Start({.job = job, .state_directory = copy + "/0"}).ok());
  OnAnotherMachine(copy + "/1");
  const absl::Status refused = ShardServer::Start({.job = job, .shard = 1, .state_directory = copy + "/1"}).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(copy + "/1"), HasSubstr("may be lost"), HasSubstr("synced"), HasSubstr("import --from")));
}

TEST_F(LostStateTest, AJournalThatFailedOnAFullDiskIsKnownAfterAKill) {
  const v1::JobSpec job = TestJob({"durability.on_failure=continue"});
  auto running = Trained(job, "state");
  const v1::HelloReply first = Hello(*running);
  TestWorker worker(running->servers, 0, 5);
  worker.sequence(0) = 2;
  worker.Read(0);
  {
    auto whole = Start(job, KilledNow("state"));
    EXPECT_EQ(Hello(*whole).state_id(), first.state_id());
  }
  std::string killed;
  WithoutRoom([&] {
    const Answer answer = worker.Push(0, 2);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
  });
  killed = KilledNow("state");
  EXPECT_FALSE(fs::exists(killed + "/" + kJournaledFile));
  auto again = Start(job, killed);
  const v1::HelloReply reply = Hello(*again);
  EXPECT_NE(reply.state_id(), first.state_id());
  EXPECT_EQ(reply.run_id(), first.run_id());
  EXPECT_THAT(again->servers.Status().restored(), AllOf(HasSubstr("is lost"), HasSubstr("the journal had failed")));
  // From then on all is kept again.
  fs::rename(killed, Path("again"));
  auto third = Start(job, KilledNow("again"));
  EXPECT_EQ(Hello(*third).state_id(), reply.state_id());
}

// As on a disk that is read-only from now on.
TEST_F(LostStateTest, WhereNotEvenThatCanBeMarkedNothingIsAcknowledged) {
  const v1::JobSpec job = TestJob({"durability.on_failure=continue"});
  auto running = Trained(job, "state");
  const v1::HelloReply first = Hello(*running);
  TestWorker worker(running->servers, 0, 5);
  worker.sequence(0) = 2;
  worker.Read(0);
  const std::string mark = Path("state/") + kJournaledFile;
  fs::remove(mark);
  fs::create_directory(mark);  // which is not removed as a file is
  WithoutRoom([&] { EXPECT_EQ(worker.Push(0, 2).status.code(), Code::kUnavailable); });
  EXPECT_EQ(worker.Push(0, 3).status.code(), Code::kUnavailable);
  const std::string killed = KilledNow("state");
  fs::remove(killed + "/" + kJournaledFile);
  std::ofstream(killed + "/" + kJournaledFile);
  auto again = Start(job, killed);
  EXPECT_EQ(Hello(*again).state_id(), first.state_id()) << "what was acknowledged is there";
  EXPECT_EQ(again->servers.Status().segments(0).version(), 1u);
}

}  // namespace
}  // namespace foreshard
