// Real daemons among peers that do everything wrong, while a worker goes on exchanging: it never
// stands still, the servers stay within their memory, and SIGTERM ends them cleanly in the middle of
// it. Longer, and with other random bytes each time: --gtest_repeat.
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/net/job_parts.h"
#include "common/net/job_spec.h"
#include "gmock/gmock.h"
#include "kernels/device.h"
#include "tests/end_to_end/job_folder.h"
#include "tests/end_to_end/raw_connection.h"
#include "tools/files.h"
#include "worker/job_setup.h"

namespace foreshard {
namespace {

using Connections = std::vector<std::unique_ptr<RawConnection>>;

// Of /proc/PID/status: "VmRSS", the bytes of memory it has, "VmHWM", the most that it ever had, or "Threads".
uint64_t ProcessFigure(int64_t pid, const std::string& what) {
  const std::string status = ReadFile(absl::StrCat("/proc/", pid, "/status")).value_or("");
  for (const absl::string_view line : absl::StrSplit(status, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(": \t"), absl::SkipEmpty());
    uint64_t number = 0;
    if (words.size() < 2 || words[0] != what || !absl::SimpleAtoi(words[1], &number)) continue;
    return words.size() == 3 && words[2] == "kB" ? number << 10 : number;
  }
  ADD_FAILURE() << "no " << what << " of process " << pid;
  return 0;
}

class AbuseDaemonTest : public EndToEndTest {
 protected:
  static constexpr uint64_t kBudget = 32 << 20;
  // What gRPC may hold of messages that are not whole, threads' stacks, and some 50 KB a connection.
  static constexpr uint64_t kBesideBytes = 128 << 20;

  void Start() {
    job_path_ = WriteSyntheticJob(1 << 20, 100000, {"training.epochs=100000", "servers.segment_elements=262144",
                                                    absl::StrCat("servers.inflight_bytes=", kBudget)});
    fleet_ = Servers(job_path_);
    ASSERT_TRUE(fleet_->StartWorker(0).ok());
    ExpectTheWorkerGoesOn("nothing");
    pid_ = fleet_->Find("server-0")->process->pid();
    before_ = ProcessFigure(pid_, "VmRSS");
  }

  std::string address() const { return fleet_->addresses()[0]; }

  void ExpectTheWorkerGoesOn(const std::string& under) {
    const uint64_t already = Completed(*fleet_);
    EXPECT_TRUE(WaitUntil([&] { return Completed(*fleet_) >= already + 5; }))
        << "under " << under << "\n" << LogOf(*fleet_, "worker-0") << LogOf(*fleet_, "server-0");
  }

  Connections Connect(int count, const std::function<std::string(int)>& says) {
    Connections connections;
    for (int k = 0; k < count; ++k) {
      connections.push_back(std::make_unique<RawConnection>(address()));
      EXPECT_TRUE(connections.back()->connected()) << k;
      connections.back()->Send(says(k));
    }
    return connections;
  }

  // Calls that read a segment, on so many streams of each connection.
  Connections SlowReaders(int count) {
    const v1::JobSpec job = LoadJobSpec(job_path_, {}).value();
    const auto data = LoadTrainingData(job).value();
    const auto device = kernels::MakeDevice("cpu").value();
    const auto model = MakeJobModel(job, *data, *device).value();
    const ShardPlan plan = ShardPlan::Create(model->schema(), MakePlanOptions(job)).value();
    v1::ExchangeRequest request;
    *request.mutable_header()->mutable_contract() = MakeContract(job, model->schema(), plan);
    request.mutable_header()->set_segment(plan.SegmentsOfShard(0).front());
    const std::string message = request.SerializeAsString();
    return Connect(count, [&](int) {
      std::string bytes = kPreface + Frame(0, 4, 0, 0, "");
      for (uint32_t stream = 1; stream < 80; stream += 2) {
        bytes += OnStream(stream, RequestHeaders(kExchange)) +
                 Frame(static_cast<uint32_t>(message.size() + 5), 0, 1, stream,
                       MessagePrefix(static_cast<uint32_t>(message.size())) + message);
      }
      return bytes;
    });
  }

  // As server 0's metrics say.
  double AppliedPushes() {
    const auto ready = ReadReadyFile(fleet_->Find("server-0")->ready_path);
    double sum = 0;
    for (const absl::string_view line : absl::StrSplit(HttpGet(ready->metrics_address, "/metrics"), '\n')) {
      double value = 0;
      if (absl::StartsWith(line, "foreshard_pushes_total{") && absl::StrContains(line, "result=\"applied\"") &&
          absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
        sum += value;
      }
    }
    return sum;
  }

  void ExpectMemoryIsBounded(const char* under) {
    const uint64_t now = ProcessFigure(pid_, "VmRSS");
    std::cout << "[ figures  ] under " << under << ": memory " << (now >> 20) << " MiB, before " << (before_ >> 20)
              << " MiB" << std::endl;
    EXPECT_LT(now, before_ + kBudget + kBesideBytes) << under;
  }

  std::string job_path_;
  std::unique_ptr<Fleet> fleet_;
  int64_t pid_ = 0;
  uint64_t before_ = 0;
};

TEST_F(AbuseDaemonTest, AWorkerGoesOnMemoryIsBoundedAndTheEndIsClean) {
  Start();
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  const std::string begun = kPreface + Frame(0, 4, 0, 0, "");
  const uint64_t threads = ProcessFigure(pid_, "Threads");
  const auto under = [&](const char* what, const Connections& connections) {
    EXPECT_FALSE(connections.empty());
    ExpectTheWorkerGoesOn(what);
    ExpectMemoryIsBounded(what);
  };
  under("random bytes", Connect(60, [&](int k) { return RandomBytes(seed + k, 4000); }));
  under("a preface and then rubbish", Connect(60, [&](int k) { return kPreface + RandomBytes(seed + k, 4000); }));
  under("frames of every kind with random content", Connect(60, [&](int k) {
    std::string bytes = begun;
    for (uint8_t kind = 0; kind < 12; ++kind) {
      const std::string content = RandomBytes(seed + kind, 8 + k % 50);
      bytes += Frame(static_cast<uint32_t>(content.size()), kind, static_cast<uint8_t>(k), kind % 4, content);
    }
    return bytes;
  }));
  under("messages and frames as long as can be said", Connect(60, [&](int k) {
    return k % 2 == 0 ? begun + RequestHeaders(kExchange) + Frame(105, 0, 0, 1, MessagePrefix(~0u - k) + std::string(100, 'm'))
                      : begun + RequestHeaders(kExchange) + Frame(0xffffff, 0, 0, 1, "cut");
  }));
  // As much as the server lets one send, without an end: 100 times 60 KB.
  under("half messages", Connect(100, [&](int k) {
    constexpr uint32_t kAll = 1 << 20, kSent = 60000;
    std::string bytes = begun + RequestHeaders(kExchange);
    std::string sent = MessagePrefix(kAll) + std::string(kSent, 'h');
    for (size_t at = 0; at < sent.size(); at += 16000) {
      const std::string piece = sent.substr(at, 16000);
      bytes += Frame(static_cast<uint32_t>(piece.size()), 0, 0, 1, piece);
    }
    return bytes;
  }));
  under("a thousand connections at once", Connect(1000, [&](int k) {
    return k % 3 == 0 ? std::string() : k % 3 == 1 ? std::string(kPreface) : begun + RequestHeaders(kExchange);
  }));
  // gRPC's own services, of which one takes a thread a call.
  for (const char* method : {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/grpc.health.v1.Health/Watch"}) {
    const Connections held = Connect(20, [&](int) {
      std::string bytes = begun;
      for (uint32_t stream = 1; stream < 100; stream += 2) bytes += OnStream(stream, RequestHeaders(method));
      return bytes;
    });
    under(method, held);
    EXPECT_LT(ProcessFigure(pid_, "Threads"), threads + 50) << method;
  }
  {
    const Connections held = SlowReaders(4);
    under("readers that never read their replies", held);
  }
  std::cout << "[ figures  ] most memory ever: " << (ProcessFigure(pid_, "VmHWM") >> 20) << " MiB" << std::endl;
  EXPECT_LT(ProcessFigure(pid_, "VmHWM"), before_ + kBudget + kBesideBytes);

  // And the end, with all kinds of them in the way.
  const Connections slow = SlowReaders(2);
  const Connections stalled = Connect(50, [&](int k) { return k % 2 == 0 ? begun + RequestHeaders(kExchange) : begun; });
  for (const char* server : {"server-0", "server-1"}) fleet_->Find(server)->process->Signal(SIGTERM);
  ASSERT_TRUE(fleet_->WaitForExits(Role::kServer, kPatience));
  for (const char* server : {"server-0", "server-1"}) {
    EXPECT_TRUE(fleet_->Find(server)->exit->ok()) << fleet_->Find(server)->exit->Describe() << LogOf(*fleet_, server);
  }
}

// A server that may not open as many files as there are callers goes on with those that it has, keeps
// some for its own files, and takes others once there is room.
TEST_F(AbuseDaemonTest, MoreConnectionsThanItMayOpen) {
  Start();
  const rlimit few = {.rlim_cur = 200, .rlim_max = 200};
  ASSERT_EQ(prlimit(static_cast<pid_t>(pid_), RLIMIT_NOFILE, &few, nullptr), 0);
  {
    const Connections held = Connect(400, [](int) { return std::string(kPreface); });
    // A status call would be a connection more.
    const double already = AppliedPushes();
    EXPECT_GT(already, 0);
    EXPECT_TRUE(WaitUntil([&] { return AppliedPushes() >= already + 5; })) << LogOf(*fleet_, "server-0");
    const std::filesystem::directory_iterator files(absl::StrCat("/proc/", pid_, "/fd"));
    EXPECT_LE(std::distance(begin(files), end(files)), 200 - 60);
  }
  EXPECT_TRUE(WaitUntil([&] { return !Statuses(*fleet_).empty(); })) << "once they have gone it takes new ones";
  ExpectTheWorkerGoesOn("none any more");
  for (const char* server : {"server-0", "server-1"}) fleet_->Find(server)->process->Signal(SIGTERM);
  ASSERT_TRUE(fleet_->WaitForExits(Role::kServer, kPatience));
  EXPECT_TRUE(fleet_->Find("server-0")->exit->ok()) << fleet_->Find("server-0")->exit->Describe();
}

}  // namespace
}  // namespace foreshard
