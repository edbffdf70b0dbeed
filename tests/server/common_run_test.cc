// A run goes on with the servers that belong to it, and with all of them.
#include "server/common_run.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "server/checkpoint_files.h"
#include "server/job_machines.h"
#include "server/run_description.h"
#include "tests/server/durability_harness.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;
namespace fs = std::filesystem;

class CommonRunTest : public DurabilityTest {
 protected:
  // Two servers, on these folders; empty: without one.
  struct Pair {
    Pair(const v1::JobSpec& job, const std::string& first, const std::string& second)
        : schema(TestSchema()), plan(ShardPlan::Create(schema, MakePlanOptions(job)).value()), job(job) {
      for (const std::string& folder : {first, second}) {
        auto started = ShardServer::Start(
            {.job = job, .shard = static_cast<uint32_t>(servers.size()), .state_directory = folder, .apply_threads = 2});
        EXPECT_TRUE(started.ok()) << started.status();
        servers.push_back(*std::move(started));
        channels.push_back(MakeChannel(servers.back()->address()));
      }
    }

    // A worker that registers and says Hello to both; the first refusal.
    absl::Status Join() {
      v1::RegisterRequest registration;
      *registration.mutable_contract() = MakeContract(job, schema, plan);
      registration.set_job_name(job.name());
      *registration.mutable_model() = ToProto(schema);
      registration.set_train_examples(kTestExamples);
      registration.set_worker_name("it");
      registration.set_wanted_slot(0);
      grpc::ClientContext context;
      const absl::Status registered =
          FromGrpc(v1::Lead::NewStub(channels[0])->Register(&context, registration, &registered_));
      if (!registered.ok()) return registered;
      for (uint32_t shard = 0; shard < 2; ++shard) {
        if (absl::Status said = Hello(shard, registered_.common_run_id(), registered_.run_begun()); !said.ok()) return said;
      }
      return absl::OkStatus();
    }
    // Also names another server's round, where it is above the lead's.
    absl::Status Hello(uint32_t shard, uint64_t run, bool begun, uint64_t round = 0) {
      v1::HelloRequest request;
      *request.mutable_contract() = MakeContract(job, schema, plan);
      request.set_job_name(job.name());
      *request.mutable_model() = ToProto(schema);
      request.set_train_examples(kTestExamples);
      request.set_worker(0);
      request.set_incarnation(registered_.incarnation());
      request.set_common_run_id(run);
      request.set_run_begun(begun);
      request.set_open_round(std::max(round, registered_.open_round()));
      request.set_open_round_shard(round > registered_.open_round() ? 1 : 0);
      grpc::ClientContext context;
      return FromGrpc(v1::ParameterServer::NewStub(channels[shard])->Hello(&context, request, &said_));
    }
    // First values everywhere, and with `push` an update of each segment.
    void Train(bool push = true) {
      for (const SegmentPlan& segment : plan.segments()) {
        for (const auto kind : {v1::ExchangeHeader::INITIALISE, v1::ExchangeHeader::READ, v1::ExchangeHeader::PUSH}) {
          if (kind == v1::ExchangeHeader::PUSH && !push) continue;
          v1::ExchangeHeader header;
          header.set_kind(kind);
          *header.mutable_contract() = MakeContract(job, schema, plan);
          header.set_segment(segment.id);
          header.set_incarnation(registered_.incarnation());
          if (kind == v1::ExchangeHeader::PUSH) header.set_sequence(1);
          std::vector<grpc::Slice> payload;
          if (kind != v1::ExchangeHeader::READ) {
            payload.emplace_back(std::string(EncodedBytes(*FindCodec(CodecId::kNone), segment.blocks), '\0'));
            header.set_checksum(Checksum(ByteSpan(payload[0].begin(), payload[0].size())));
          }
          const auto answer = SendRaw(channels[segment.shard], MakeMessage(header, payload));
          EXPECT_TRUE(answer.ok()) << answer.status();
        }
      }
    }

    const Schema schema;
    const ShardPlan plan;
    const v1::JobSpec job;
    v1::RegisterReply registered_;
    v1::HelloReply said_;  // to the last Hello
    std::vector<std::unique_ptr<ShardServer>> servers;
    std::vector<std::shared_ptr<grpc::Channel>> channels;
  };

  static v1::JobSpec Job() { return TestJob({"servers.shards=2"}); }
  // A run that has made steps and has ended well, in NAME/0 and NAME/1.
  void Ran(const std::string& name, bool push = true) {
    Pair pair(Job(), Path(name + "/0"), Path(name + "/1"));
    const absl::Status joined = pair.Join();
    ASSERT_TRUE(joined.ok()) << joined;
    EXPECT_FALSE(pair.registered_.run_begun());
    pair.Train(push);
  }
  uint64_t RunOf(const std::string& folder) {
    return ReadRunDescription(*OpenStorageToRead(Path(folder)).value()).value()->common_run_id();
  }
  static void Forget(const std::string& folder) {
    const auto storage = OpenStorage(folder).value();
    v1::RunDescription description = *ReadRunDescription(*storage).value();
    description.clear_common_run_id();
    ASSERT_TRUE(WriteRunDescription(storage.get(), description).ok());
  }
};

TEST_F(CommonRunTest, AllServersKeepTheLeadsIdAndSoDoCheckpoints) {
  Ran("a");
  EXPECT_NE(RunOf("a/0"), 0u);
  EXPECT_EQ(RunOf("a/0"), RunOf("a/1"));
  for (const char* folder : {"a/0", "a/1"}) {
    const auto storage = OpenStorageToRead(Path(folder)).value();
    const auto text = storage->Read(absl::StrCat(Checkpoint::List(*storage)->back(), "/manifest.json")).value();
    EXPECT_EQ(ParseManifest(text).value().about.identity.run, RunOf(folder));
  }
  Pair again(Job(), Path("a/0"), Path("a/1"));
  EXPECT_TRUE(again.Join().ok());
  EXPECT_TRUE(again.registered_.run_begun());
}

TEST_F(CommonRunTest, AServerWithoutItsStateIsNotBegunAnewInARunThatGoesOn) {
  Ran("a");
  for (const bool kept : {true, false}) {
    const std::string empty = kept ? Path("empty") : "";
    for (int start = 0; start < 2; ++start) {  // also of the second start on what the first has left
      Pair pair(Job(), Path("a/0"), empty);
      const absl::Status refused = pair.Join();
      EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
      EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(kept ? Path("empty") : "without --state-directory"),
                                                        HasSubstr("has begun"), HasSubstr("foreshard import")));
    }
  }
  // With its own again.
  Pair pair(Job(), Path("a/0"), Path("a/1"));
  EXPECT_TRUE(pair.Join().ok());
}

// An older copy of one server's directory is of the same run.
TEST_F(CommonRunTest, RoundsOfAnotherMomentAreRefused) {
  const v1::JobSpec job = SynchronousJob({"servers.shards=2", "update.momentum="});
  const uint64_t apart = MostRoundsApart(job), rounds = apart + 3;
  std::string older, closer;
  {
    Running running(job, folder_);
    for (uint64_t round = 0; round < rounds; ++round) {
      if (round == 1) older = KilledNow("1");
      if (round == 4) closer = KilledNow("1");
      for (const uint32_t slot : {0, 1}) {
        TestWorker worker(running.servers, slot, 5);
        if (round == 0) {
          ASSERT_TRUE(worker.SayHello().ok());
          worker.InitialiseAll();
        }
        for (const SegmentPlan& segment : running.servers.plan.segments()) {
          if (segment.kind != TensorKind::kTrainable) continue;
          worker.sequence(segment.id) = round;
          v1::ExchangeHeader push = worker.PushHeader(segment.id, 2 * round + slot);
          push.set_round(round);
          push.set_held_version(round);
          const Answer answer = worker.Send(push, worker.Encode(segment.id, worker.Gradient(segment.id, round)));
          ASSERT_TRUE(answer.status.ok()) << answer.status;
        }
      }
    }
  }
  {
    Pair pair(job, Path("0"), closer);
    EXPECT_TRUE(pair.Join().ok()) << "as close as members can leave them";
    EXPECT_EQ(pair.registered_.open_round(), rounds);
    EXPECT_EQ(pair.said_.open_round(), 4u);
  }
  {
    Pair pair(job, Path("0"), older);
    const absl::Status refused = pair.Join();
    EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr(older), HasSubstr("has round 1 open"), HasSubstr(absl::StrCat("shard 0 round ", rounds)),
                      HasSubstr("import --from")));
  }
  // The lead's is the older one: it hears of the other's round.
  fs::copy(Path("0"), Path("lead"), fs::copy_options::recursive);
  Pair pair(job, Path("lead"), Path("1"));
  ASSERT_TRUE(pair.Join().ok());
  const absl::Status refused =
      pair.Hello(0, pair.registered_.common_run_id(), true, pair.registered_.open_round() + apart + 1);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the server of shard 1 round"));
}

TEST_F(CommonRunTest, ALeadWhoseClockWasFarAheadGoesOn) {
  Ran("a");
  constexpr uint64_t kMonth = 30 * 24 * 3600 * uint64_t{1'000'000};
  {
    const auto storage = OpenStorage(Path("a/0")).value();
    v1::RunDescription description = *ReadRunDescription(*storage).value();
    description.set_incarnation(description.incarnation() + kMonth);
    ASSERT_TRUE(WriteRunDescription(storage.get(), description).ok());
  }
  {
    Pair pair(Job(), Path("a/0"), Path("a/1"));
    const absl::Status joined = pair.Join();
    EXPECT_TRUE(joined.ok()) << joined;
    // Not of whoever names another run, nor any number.
    const uint64_t given = std::exchange(pair.registered_, {}).incarnation();
    pair.registered_.set_incarnation(given);
    const absl::Status refused = pair.Hello(1, 4711, false);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("clock"), HasSubstr("foreshard import --from-state")));
    pair.registered_.set_incarnation(~uint64_t{0} - 1);
    EXPECT_EQ(pair.Hello(1, RunOf("a/1"), false).code(), Code::kInvalidArgument);
  }
}

TEST_F(CommonRunTest, EveryServerSaysOfWhichRunItIs) {
  Pair pair(Job(), Path("a/0"), Path("a/1"));
  ASSERT_TRUE(pair.Join().ok());
  for (const uint32_t shard : {0, 1}) {
    ASSERT_TRUE(pair.Hello(shard, pair.registered_.common_run_id(), false).ok());
    EXPECT_EQ(pair.said_.common_run_id(), pair.registered_.common_run_id());
  }
}

TEST_F(CommonRunTest, AStateOfAnotherRunIsRefused) {
  Ran("a");
  Ran("b");
  ASSERT_NE(RunOf("a/0"), RunOf("b/0"));
  for (const char* lead : {"a/0", "fresh"}) {
    Pair pair(Job(), Path(lead), Path("b/1"));
    const absl::Status refused = pair.Join();
    EXPECT_EQ(refused.code(), Code::kFailedPrecondition) << lead;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr(Path("b/1")), HasSubstr("the state of run"), HasSubstr("the directory that it had")))
        << lead;
  }
  // A checkpoint that came from another run's directory.
  fs::remove_all(Path("a/1/checkpoint.0000000001"));
  fs::copy(Path("b/1/checkpoint.0000000001"), Path("a/1/checkpoint.0000000001"), fs::copy_options::recursive);
  const absl::Status refused = ShardServer::Start({.job = Job(), .shard = 1, .state_directory = Path("a/1")}).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("checkpoint.0000000001"), HasSubstr("run")));
}

TEST_F(CommonRunTest, ARunThatHasOnlyFirstValuesMayBringThemAgain) {
  Ran("a", false);
  Pair pair(Job(), Path("a/0"), Path("other"));
  EXPECT_TRUE(pair.Join().ok());
  EXPECT_FALSE(pair.registered_.run_begun());
  EXPECT_EQ(RunOf("other"), RunOf("a/0"));
}

TEST_F(CommonRunTest, ServersThatKeepNothingAreAskedNothing) {
  Pair pair(Job(), "", "");
  ASSERT_TRUE(pair.Join().ok());
  pair.Train();
  EXPECT_TRUE(pair.Join().ok());
  EXPECT_FALSE(pair.registered_.run_begun());
  EXPECT_TRUE(pair.Hello(1, 4711, false).ok()) << "a lead that was started again";
}

TEST_F(CommonRunTest, StateOfAProgramThatKnewNoIdsIsTakenUpWhereTheLeadHasItsOwn) {
  Ran("a");
  for (const char* folder : {"a/0", "a/1"}) Forget(Path(folder));
  {
    // Not where the lead begins anew.
    Pair pair(Job(), Path("fresh"), Path("a/1"));
    const absl::Status refused = pair.Join();
    EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(Path("a/1")), HasSubstr("without its own state")));
  }
  EXPECT_EQ(RunOf("a/1"), 0u);
  {
    Pair pair(Job(), Path("a/0"), Path("a/1"));
    EXPECT_TRUE(pair.Join().ok());
    // And a worker of the last release, which says nothing of it.
    EXPECT_TRUE(pair.Hello(1, 0, false).ok());
  }
  EXPECT_NE(RunOf("a/0"), 0u);
  EXPECT_EQ(RunOf("a/0"), RunOf("a/1"));
}

}  // namespace
}  // namespace foreshard
