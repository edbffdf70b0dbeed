// Rolling upgrades: servers and workers of this release and of the next one, which is this one with
// another range of protocols, train together, and servers are replaced under a worker that goes on.
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "foreshard/v1/admin.grpc.pb.h"
#include "gmock/gmock.h"
#include "tests/end_to_end/in_process_job.h"
#include "tests/end_to_end/job_folder.h"

namespace foreshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr ProtocolRange kThis;
constexpr ProtocolRange kNext = {.oldest = kProtocolVersion, .newest = kProtocolVersion + 1};
constexpr ProtocolRange kAfterNext = {.oldest = kProtocolVersion + 1, .newest = kProtocolVersion + 2};

class UpgradeTest : public EndToEndTest {
 protected:
  // To the job's end, with a worker of each release.
  void Train(const ProtocolRange& servers_speak, const ProtocolRange& workers_speak) {
    const v1::JobSpec job = SyntheticJob({"training.workers=2"});
    InProcessServers servers(job, Path("state"), servers_speak);
    std::vector<std::unique_ptr<InProcessWorker>> workers;
    workers.push_back(std::make_unique<InProcessWorker>(job, servers.addresses()));
    workers.push_back(std::make_unique<InProcessWorker>(job, servers.addresses(), workers_speak));
    TrainAll(workers);
    EXPECT_TRUE(servers[0]->status().finished());
    EXPECT_EQ(servers[0]->status().completed_tickets(), servers[0]->status().total_tickets());
  }
};

TEST_F(UpgradeTest, WorkersOfThisReleaseTrainOnServersOfTheNextOne) { Train(kNext, kThis); }

TEST_F(UpgradeTest, WorkersOfTheNextReleaseTrainOnServersOfThisOne) { Train(kThis, kNext); }

TEST_F(UpgradeTest, AWorkerTooOldEndsWithWhatIsToBeUpgraded) {
  const v1::JobSpec job = SyntheticJob({"training.workers=1"});
  InProcessServers servers(job, Path("state"), kAfterNext);
  InProcessWorker worker(job, servers.addresses());
  const absl::Status refused = worker.Connect();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("server 0 at"), HasSubstr("speaks 4 to 5, the caller 3"), HasSubstr("upgrade the caller")));
}

// Both ways, the lead too: each server goes on from what the other release has written, and the
// worker with what it agrees on anew. What was acknowledged is there once.
TEST_F(UpgradeTest, ServersAreReplacedUnderAWorkerAndBack) {
  const v1::JobSpec job = SyntheticJob({"training.workers=1", "training.epochs=100000"});
  InProcessServers servers(job, Path("state"), kThis);
  InProcessWorker worker(job, servers.addresses());
  ASSERT_TRUE(worker.Connect().ok());
  std::atomic<uint64_t> acknowledged{0};
  worker.after_push = [&](const PushFigures&) { ++acknowledged; };
  absl::Status ended;
  std::thread training([&] { ended = worker.Train(); });
  const auto goes_on = [&] {
    const uint64_t already = acknowledged;
    EXPECT_TRUE(WaitUntil([&] { return acknowledged >= already + 20; }));
  };
  goes_on();
  for (const auto& [shard, speaks] : {std::pair{1u, kNext}, std::pair{0u, kNext}, std::pair{1u, kThis}}) {
    SCOPED_TRACE(absl::StrCat("server ", shard, " now speaks up to ", speaks.newest));
    servers.Replace(shard, speaks);
    EXPECT_THAT(servers[shard]->status().restored(), HasSubstr("events of the journal replayed"));
    EXPECT_EQ(servers[shard]->status().protocol(), speaks.newest);
    goes_on();
  }
  grpc::ClientContext context;
  v1::StopReply stopped;
  EXPECT_TRUE(v1::Admin::NewStub(worker.client().channel(0))->Stop(&context, {}, &stopped).ok());
  training.join();
  EXPECT_TRUE(ended.ok()) << ended;
  for (size_t shard = 0; shard < servers.size(); ++shard) {
    const v1::StatusReply status = servers[shard]->status();
    ASSERT_GT(status.segments_size(), 1);
    for (const v1::SegmentStatus& segment : status.segments()) EXPECT_EQ(segment.version(), acknowledged);
  }
  worker.Leave();
}

}  // namespace
}  // namespace foreshard
